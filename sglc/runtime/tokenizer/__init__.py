"""Text to ids and back: vocabularies, pretokenizers, chat templates, and text that comes id by id. No torch.

May import: errors, ir and `runtime.model_files`.
"""
