"""Model folders and GGUF files: which there are, their configuration, and their weights.

May import: errors, knobs, `runtime.model_files` and `runtime.tokenizer`.
"""
