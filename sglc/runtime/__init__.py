"""The local runtime: sees plain plan and sampling data, never a program. torch is imported only below here.

From the ground: model_files, ids, step, choice_trie; tokenizer, model, attention, kernels, executor;
constraints, cache, scheduler; engine. Each may import those before it. Of ir they see `plan.segment`,
`plan.events`, `plan.dataflow`, `sampling`, `grammar`, `target` and `choice_scoring`.
"""
