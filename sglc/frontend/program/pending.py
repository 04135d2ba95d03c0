"""Appended, and not settled yet: what Python must see before the prompt goes on behind it.

Such are choices that Python makes, texts that may have to be made again, reasoning that does not stay, and
generations on another back end. Each begins at once, on a branch; it is settled when its state, or its
variable, is needed next. Until then text and chat turns behind it wait in the state, so that forks which all
append such a thing run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sglc.errors import BackendError, LegalizeError, TraceError
from sglc.frontend.language.choices import ChoicesSamplingMethod
from sglc.frontend.language.expr import GenExpr, SelectExpr
from sglc.frontend.language.reasoning import Share, Tags
from sglc.frontend.outputs.output_form import OutputParser, unparsable
from sglc.frontend.program.instance import Awaited, PromptState, Variable, first
from sglc.frontend.program.other_backend import NO_LAUNCH, program_of
from sglc.frontend.values.graph_breaks import OTHER_BACKEND
from sglc.frontend.values.recorded import Generated, Launcher, RecordedStream, Scores
from sglc.ir.choice_scoring import fmean
from sglc.ir.core import Type, Value

REASONING = "{}_reasoning_content"
_NOT_HELD = "SGLC546"  # a back end that only asks for the form has an answer that misses it


class Pending:
    """One generation or choice that was appended to `state` and is not settled.

    Args:
        tags: of reasoning that does not stay in the prompt.
    """

    def __init__(self, state: PromptState, expr: GenExpr | SelectExpr, tags: Tags | None = None) -> None:
        self.state = state
        self._expr = expr
        self._name = expr.name or expr.unnamed
        self._tags = tags
        self._branch: RecordedStream | None = None  # that it runs on; None on another back end
        self._made: Generated | None = None
        self._begun = False
        self._problem: BaseException | None = None  # why it could not begin

    def variables(self, settle: Callable[[], None]) -> dict[str, Variable]:
        """What is stored now. `settle` settles the state."""
        made = self._announce()
        if self._tags is not None:
            shares: dict[str, Variable] = {
                name: replace(made, parser=parser) for name, parser in self._shares(self._tags)
            }
            if self._expr.backend is None:  # everything about them is known
                return shares
            return {name: Awaited(settle, share) for name, share in shares.items()}
        known = None
        if self._expr.backend is not None and not self._expr.retries and self._expr.decide is None:
            known = replace(made, parser=self._expr.parser)
        return {self._name: Awaited(settle, known)}

    def begin(self) -> None:
        """Have it recorded, or launched; does not wait for it. Idempotent."""
        if not self._begun:
            self._begun = True
            try:
                self._run()
            except Exception as problem:  # it is this generation's own, whoever made it begin
                self._problem = problem

    def finish(self) -> dict[str, Variable]:
        """Wait for it, and have the prompt go on behind it; gives what is stored now.

        Raises:
            the error of the generation; RunError SGLC410, BackendError SGLC546, no text has its form.
        """
        if self._problem is not None:
            raise self._problem
        launcher = self.state._instance.observe(self.what, self._expr.loc)
        if self._expr.decide is not None:
            return self._decided(self._expr.decide, launcher.call_of_site(self._site.site))
        text = self._good_text(launcher)
        made = self._site
        if self._tags is not None:
            self._end_branch()
            self.state.put(Share(self._tags, False)(first(text)), self._expr.loc)
            return {name: replace(made, parser=parser) for name, parser in self._shares(self._tags)}
        if self._branch is None:
            self.state.put(first(text), self._expr.loc)
        else:
            self.state.adopt(self._branch, made)
        return {self._name: replace(made, parser=self._expr.parser)}

    # -- inside ----------------------------------------------------------------------------------

    @property
    def _site(self) -> Generated:
        assert self._made is not None
        return self._made

    @property
    def what(self) -> str:
        """Why a run is needed."""
        if self._expr.backend is not None:
            return OTHER_BACKEND.what
        if self._tags is not None:
            return "`separate_reasoning`"
        return "`choices_method`" if self._expr.decide is not None else "`retries`"

    def _shares(self, tags: Tags) -> list[tuple[str, OutputParser]]:
        return [
            (self._name, OutputParser("text", Share(tags, False), self._expr.loc)),
            (REASONING.format(self._name), OutputParser("text", Share(tags, True), self._expr.loc)),
        ]

    def _announce(self) -> Generated:
        """The generation's site. On another back end it is known before the program for it is."""
        if self._expr.backend is None:
            self.begin()
            if self._problem is not None:
                raise self._problem
        else:
            recorder = self.state._instance.recorder
            with self.state._instance.recording:
                site = recorder.reserve(self.state._path, self._name)
            asked = self._expr.overrides.get("n") if isinstance(self._expr, GenExpr) else 1
            many = (asked or recorder.defaults.n) > 1
            self._made = Generated(site, NO_LAUNCH, Value(NO_LAUNCH, Type.TEXT), many=many)
        return self._site

    def _run(self) -> None:
        instance, loc = self.state._instance, self._expr.loc
        recorder = instance.recorder
        if self._expr.backend is None:
            if not self.state._path and self._expr.retries:
                # The run's own text is shown launch by launch, so a launch must end where the branch begins.
                instance.observe(self.what, loc)
            with instance.recording:
                (self._branch,) = recorder.fork(self.state._stream, 1, (), loc)
                self._made = recorder.generate(self._branch, self.state._path, self._expr)
            return
        launcher = instance.observe(self.what, loc)
        history = self.state._history
        recorded = program_of(
            recorder.function, recorder.defaults, history,
            lambda made: instance.in_prompt(made, self.what, loc), self._site.site, self._expr,
        )  # fmt: skip
        launcher.launch_on(self._expr.backend, recorded, loc)

    def _again(self) -> None:
        self._end_branch()
        if self._expr.backend is not None:
            self._announce()
        self._run()

    def _end_branch(self) -> None:
        if self._branch is not None:
            self._branch.live = False

    def _good_text(self, launcher: Launcher) -> str | list[str]:
        """The text, made again until `check` takes it."""
        expr = self._expr
        check, attempts = expr.check if expr.retries else None, 1 + expr.retries
        for attempt in range(1, attempts + 1):
            try:
                text = launcher.text_of_site(self._site.site)
            except BackendError as error:
                if error.code != _NOT_HELD or attempt == attempts:
                    raise
                launcher.made_again(self._site.site)
            else:
                problem = _problem(check, text)
                if check is None or problem is None:
                    return text
                if attempt == attempts:
                    self._end_branch()
                    raise unparsable(check, *problem, attempts, expr.loc)
            self._again()
            launcher = self.state._instance.observe(self.what, expr.loc)
        raise AssertionError("the last attempt returns or raises")

    def _decided(self, decide: ChoicesSamplingMethod, call: Scores) -> dict[str, Variable]:
        """Let Python decide; the prompt goes on with its decision as text."""
        assert isinstance(self._expr, SelectExpr)
        self._end_branch()
        if not call.logprobs:
            raise LegalizeError(
                "SGLC314", f"`{self._name}` cannot be decided by `{type(decide).__name__}`", self._expr.loc,
                note="this back end gives no log-probabilities of given text",
                hint="leave `choices_method` out: it then writes one of the choices",
            )  # fmt: skip
        by_token = _by_token(call.logprobs, call.choice_ids)
        alone = decide.requires_unconditional_logprobs
        choices = [choice for choice in self._expr.choices if isinstance(choice, str)]
        decision = decide(
            choices=choices,
            normalized_prompt_logprobs=[fmean(logprobs) for logprobs in call.logprobs],
            input_token_logprobs=by_token,
            output_token_logprobs=[[] for _ in by_token],
            unconditional_token_logprobs=_by_token(call.unconditional, call.choice_ids) if alone else None,
        ).decision
        if decision not in choices:
            what = f"`{type(decide).__name__}` chose `{decision}`, which is no choice"
            raise TraceError("SGLC105", what, self._expr.loc)
        self.state.put(decision, self._expr.loc)
        return {self._name: decision}


def _by_token(
    logprobs: Sequence[Sequence[float | None]], ids: Sequence[Sequence[int]]
) -> list[list[tuple[float | None, int, None]]]:
    """Log-probabilities of texts in SGLang's form: (log-probability, id, None) of every token."""
    return [
        [(logprob, token, None) for logprob, token in zip(one, tokens, strict=True)]
        for one, tokens in zip(logprobs, ids, strict=True)
    ]


def _problem(check: OutputParser | None, text: str | list[str]) -> tuple[str, str] | None:
    """The first text that `check` refuses, and why."""
    for sample in [text] if isinstance(text, str) else text:
        try:
            if check is not None:
                check.value(sample)
        except ValueError as problem:
            return sample, " ".join(str(problem).split())
    return None
