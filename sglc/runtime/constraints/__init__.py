"""Which tokens a generation may go on with: automata over a vocabulary, and the libraries behind one protocol.

May import: errors, ir and `runtime.step`.
"""
