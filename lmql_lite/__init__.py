"""lmql_lite: a prompt-programming language whose runtime never pays for the same token twice."""
