"""Chat templates in the shapes that models bring, and tokenizers that know their special tokens."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

DEFAULT_SYSTEM = """{%- if messages[0]['role'] != 'system' -%}
    {{- '<|begin|>system\\nYou are of help.<|end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {{- '<|begin|>' + message.role + '\\n' + message['content'] + '<|end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|begin|>assistant\\n' -}}
{%- endif -%}
"""
"""One pair of special tokens around every turn, and a system turn where the conversation has none."""

TRIMMED = """{{- bos_token }}
{%- set today = strftime_now('%d %b %Y') if strftime_now is defined else 'today' %}
{%- if messages[0]['role'] == 'system' %}
    {%- set says = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set says = '' %}
{%- endif %}
{{- '<|head|>system<|/head|>\\n\\nIt is ' + today + '.\\n\\n' + says + '<|stop|>' }}
{%- for message in messages %}
    {{- '<|head|>' + message['role'] + '<|/head|>\\n\\n' + message['content'] | trim + '<|stop|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\\n\\n' }}{% endif %}
"""
"""Heads of turns, a system turn that is always there and tells the date; white space is taken away."""

NO_SYSTEM = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('no system role here') }}{% endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('turns must alternate user/assistant') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<turn>' + role + '\\n' + (message['content'] | trim) + '</turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<turn>model\\n' }}{% endif %}"""
"""The assistant under another name; turns alternate, and none is the system's."""

MERGED = """{%- if messages[0]['role'] == 'system' %}
    {%- set first, messages = messages[0]['content'] + '\\n\\n', messages[1:] %}
{%- else %}
    {%- set first = '' %}
{%- endif %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- '[ASK] ' + (first if loop.first else '') + message['content'] + ' [/ASK]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('only user and assistant') }}
    {%- endif %}
{%- endfor %}"""
"""The system's text begins the user's first one; what stands around turns is plain text, and no prompt for answers."""

MERGED_LAST = """{{- bos_token }}
{%- set ns = namespace(system='') %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{% set ns.system = message['content'] %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message['role'] == 'user' %}
        {{- '[ASK]' + (ns.system + '\\n\\n' if loop.last and ns.system else '') + message['content'] + '[/ASK]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}"""
"""The system's text stands in the last user turn."""

THINKING = """{{ bos_token }}{% for message in messages %}
{%- if message['role'] == 'assistant' %}
    {{- '<|begin|>assistant\\n' + message['content'].split('</think>')[-1] + '<|end|>' }}
{%- else %}{{ '<|begin|>' + message['role'] + '\\n' + message['content'] + '<|end|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|begin|>assistant\\n<think>\\n' }}{% endif %}"""
"""An answer that is asked for begins with words that older answers do not have."""

PLAIN = """{% for message in messages %}### {{ message['role'] | capitalize }}: {{ message['content'] }}
{% endfor %}{% if add_generation_prompt %}### Assistant: {% endif %}"""
"""No special tokens at all."""

POSITIONS = """{% for message in messages %}{{ loop.index }}. {{ message['role'] }}: {{ message['content'] }}
{% endfor %}"""
"""Turns are counted."""

SPECIAL = ("<s>", "</s>", "<|begin|>", "<|end|>", "<|head|>", "<|/head|>", "<|stop|>", "<turn>", "</turn>")
TEXT = [
    "system user assistant model\n\nIt is 26 Jul 2024.\n\nYou are of help. [ASK] What is 2+2? [/ASK] It is 4.",
    "### System: Be brief. ### User: Hello there! \n\n### Assistant: <think>\nwell\n</think>\n",
]


def byte_level(special: Sequence[str] = SPECIAL) -> Tokenizer:
    """A small byte-level BPE; texts are cut at white space as the ones of large models are."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT * 3, trainer)
    return backend


def sentence_piece() -> Tokenizer:
    """Byte fallback, and a space before every text, also after a special token."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    for piece in ("▁", "A", "S", "K", "AS", "ASK", "[", "▁[", "H", "i", "Hi", "▁Hi", "/", "]"):
        vocabulary[piece] = len(vocabulary)
    merges = [("A", "S"), ("AS", "K"), ("▁", "["), ("H", "i"), ("▁", "Hi")]
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend
