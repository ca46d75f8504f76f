import lmql_lite as lq
from tests.test_examples import EXAMPLES
from tests.servers.test_runs_on_llama import *
def test_it(known, tmp_path):
    r = lq.compile(EXAMPLES/"15_react.lq").run_sync(model=known, session=lq.Session(), cache=False)
    out=[(t.data.decode(), t.source, t.fate) for t in r.tokens][-60:]
    open('/tmp/w/react_out.txt','w').write("\n".join(map(str,out)))
