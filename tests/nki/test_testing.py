"""The pytest plugin: tests of kernels that pass, and how those read that fail."""

from __future__ import annotations

import sys
from textwrap import dedent

import pytest
from plugin_runs import OLD, Run, lines_of, place_of

pytest_plugins = ["pytester"]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    return Run(pytester)


# ---- what passes


def test_results_written_arguments_tuples_and_functions_pass(run: Run) -> None:
    text = """
    import ml_dtypes

    def test_array(nki_simulate):
        ran = nki_simulate(double, A)
        ran.equals(2 * A)
        assert ran.result.dtype == np.float32 and ran.writes == {}
        assert 5 < ran.profile.benchmark_us < 50

    def test_function_gets_the_inputs_and_the_attributes(nki_simulate):
        nki_simulate(double, A, by=3.0).equals(lambda a, by: a * by)

    def test_narrow_floats_reach_it_as_float32(nki_simulate):
        def reference(a):
            assert a.dtype == np.float32
            return 2 * a
        nki_simulate(double, A.astype(ml_dtypes.bfloat16)).equals(reference)

    def test_tuple(nki_simulate):
        nki_simulate(split, B).equals((B[:, :4], B[:, 4:]))
        nki_simulate(split, B).equals(lambda b: np.split(b, 2, axis=1))

    def test_written(nki_simulate):
        dst, count = np.zeros((4, 3), np.float32), np.zeros((1, 1), np.int32)
        ran = nki_simulate(fill, dst, count, A)
        ran.equals((2 * A, np.full((1, 1), 3)))
        ran.equals(writes={"count": np.full((1, 1), 3), "dst": lambda dst, count, a: 2 * a + dst})
        assert list(ran.writes) == ["dst", "count"] and ran.result is None and dst[3, 2] == 24

    def test_the_bound_of_a_dtype(nki_simulate):
        nki_simulate(double, A).equals(2 * A * (1 + 5e-5))
        nki_simulate(double, A.astype(ml_dtypes.bfloat16)).equals(2 * A * 1.015)
        nki_simulate(double, A).equals(2 * A * 1.2, rtol=0.2)
        with pytest.raises(AssertionError):
            nki_simulate(double, A).equals(2 * A * (1 + 3e-4))
        with pytest.raises(AssertionError, match="(?s)count.*is 3, expected 4.*int32 must be exact"):
            nki_simulate(fill, A * 0, np.zeros((1, 1), np.int32), A).equals((2 * A, [[4]]))
    """
    run(dedent(text)).assert_outcomes(passed=6)


def test_one_that_only_calls_a_kernel_has_a_budget_too(run: Run) -> None:
    text = """
    @pytest.mark.nki_budget(us=100)
    def test_called():
        double(A)

    @pytest.mark.nki_budget(1)
    def test_slow():
        double(A)

    @pytest.mark.nki_budget(us=1)
    def test_no_call():
        pass

    @pytest.mark.nki_budget(ms=1)
    def test_wrong_mark():
        double(A)

    @pytest.mark.nki_budget(us=0)
    def test_wrong_number():
        double(A)

    @pytest.mark.xfail(strict=True)
    @pytest.mark.nki_budget(1)
    def test_known_to_be_slow():
        double(A)
    """
    result = run(dedent(text))
    result.assert_outcomes(passed=1, failed=4, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "double(f32[[]4,3]) on trn2 is predicted to take * us (* to *), * us over the budget of 1 us",
            "by cost:",
            "* us  launch (fixed)",
            "by line of the kernel:",
            "* us  line 15: nisa.tensor_scalar(*",
            "nki_budget: the test ran no kernel on the simulator*",
            "*nki_budget takes us=, and upper=True*",
            "*us=0 is not a positive number*",
        ]
    )


def test_a_budget_may_hold_the_upper_end(run: Run) -> None:
    """A budget between the headline and the upper end passes without, and fails with ``upper``."""
    text = """
    def between():
        from trnrt.nki import profile
        predicted = profile(double, A)
        assert predicted.benchmark_us < predicted.high_us.benchmark
        return (predicted.benchmark_us + predicted.high_us.benchmark) / 2

    @pytest.mark.nki_budget(us=between())
    def test_headline(nki_simulate):
        nki_simulate(double, A)

    @pytest.mark.nki_budget(us=between(), upper=True)
    def test_upper(nki_simulate):
        nki_simulate(double, A)
    """
    result = run(dedent(text))
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["* us over the budget of * us at the upper end"])


def test_a_budget_may_differ_by_target(run: Run) -> None:
    text = """
    @pytest.mark.nki_budget(us={"trn1": 100, "trn2": 1})
    def test(nki_simulate):
        nki_simulate(double, A)

    @pytest.mark.nki_budget(us={"trn1": "fast"})
    def test_wrong(nki_simulate):
        nki_simulate(double, A)

    @pytest.mark.nki_budget(us={"trn02": 1})
    def test_no_such_target(nki_simulate):
        nki_simulate(double, A)

    @pytest.mark.nki_budget(us={})
    def test_no_limit(nki_simulate):
        nki_simulate(double, A)
    """
    result = run(dedent(text), "--nki-target", "trn1,trn2,trn3")
    result.assert_outcomes(passed=2, failed=10)
    result.stdout.fnmatch_lines(["*nki_budget: us={'trn02': 1}: unknown target 'trn02'*", "*us={} is not*"])
    result.stdout.fnmatch_lines(["double(f32?4,3?) on trn2 * us over the budget of 1 us", "*'fast'}* positive number*"])


# ---- what fails, and how it reads


def test_a_wrong_element_names_the_instruction_that_wrote_it(run: Run) -> None:
    result = run("def test(nki_simulate):\n    expected = 2 * A\n    expected[1, 2] += 1; expected[3, 1] = 0\n"
                 "    nki_simulate(double, A).equals(expected)\n")  # fmt: skip
    result.assert_outcomes(failed=1)
    assert lines_of(result) == [
        "AssertionError: double(f32[4,3]) on trn2: the result is wrong in 2 of 12 elements",
        "first: [1, 2] is 12, expected 13, off by 1, allowed 0.00131",
        "worst: [3, 1] is 22, expected 0, off by 22, allowed 1e-05",
        "tolerance: rtol 0.0001, atol 1e-05 (the default of float32; rtol= and atol= set others)",
        "it was written by nisa.dma_copy, instruction 3 of 3",
        f"{place_of('nisa.dma_copy(dst=out, src=a_sb)')} in double",
        "nisa.dma_copy(dst=out, src=a_sb)",
        "from loaded [1, 2], written by nisa.tensor_scalar 'doubling', instruction 2 of 3",
        f"{place_of('nisa.tensor_scalar(')} in double",
        'nisa.tensor_scalar(dst=a_sb, data=a_sb, op0=nl.multiply, operand0=by, name="doubling")',
    ]
    result.stdout.no_fnmatch_line("*trnrt/nki*")  # no frames of the simulator


def test_the_second_result_and_a_helpers_line(run: Run) -> None:
    result = run("def test(nki_simulate):\n    nki_simulate(split, B).equals((B[:, :4], B[:, 4:] * [1, 1, 1, 2]))\n")
    lines = lines_of(result)
    assert lines[0].endswith("result 1 is wrong in 4 of 16 elements")
    at = lines.index("from loaded [0, 7], written by nisa.dma_copy, instruction 1 of 3")
    assert lines[at + 1] == f"{place_of('nisa.dma_copy(dst=a_sb, src=a)')} in load, called from line 25 of split"
    assert lines[at + 3] == "from a [0, 7], an argument"


def test_an_element_that_nothing_wrote(run: Run) -> None:
    result = run("def test(nki_simulate):\n    nki_simulate(leaves_rows_out, A).equals(A)\n")
    lines = lines_of(result)
    assert lines[1] == "first: [2, 0] is nan, expected 7"
    assert lines[-1].startswith("no instruction writes it: it is uninitialised memory")


def test_a_copy_of_unwritten_memory(run: Run) -> None:
    result = run("def test(nki_simulate):\n    nki_simulate(copies_unwritten, A).equals(A)\n")
    lines = lines_of(result)
    made, read = (f"{place_of(code)} in copies_unwritten" for code in ('name="half"', "dst=out, src=a_sb)  # half"))
    assert any(line.startswith(f"from half [0, 2], which nothing had written ({made}): it is") for line in lines)
    assert any(line.startswith(f"unwritten memory is read at {read}: dma_copy reads src, half [4x3]") for line in lines)


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("nki_simulate(double, A).equals(A[:2])", "the result: its shape is (4, 3), expected (2, 3)"),
        ("nki_simulate(split, B).equals((B, B, B))", "split gives result 0, result 1, and the test expects 3 arrays"),
        ("nki_simulate(double, A).equals(writes={'a': A})", "double doesn't write an argument 'a'; it writes none"),
        ("nki_simulate(double, A).equals()", "equals() needs what to compare with"),
        ("nki_simulate(double, A).equals('A')", "the result: str is no array of numbers"),
    ],
)
def test_a_comparison_that_makes_no_sense(run: Run, statement: str, error: str) -> None:
    result = run(f"def test(nki_simulate):\n    {statement}\n")
    result.assert_outcomes(failed=1)
    assert error in lines_of(result)[0]


def test_a_broken_rule_shows_the_kernels_line_and_can_be_expected(run: Run) -> None:
    text = """
    def test_expected(nki_simulate):
        from trnrt.errors import KernelError
        with pytest.raises(KernelError, match="dma_copy"):
            nki_simulate(broken, A)

    def test_not(nki_simulate):
        nki_simulate(broken, A)
    """
    result = run(dedent(text))
    result.assert_outcomes(passed=1, failed=1)
    place = place_of("nisa.dma_copy(dst=a, src")
    result.stdout.fnmatch_lines([">*nki_simulate(broken, A)", "*nisa.dma_copy(dst=a, src=a_sb?:, 1:?)", f"{place}: *"])
    result.stdout.no_fnmatch_line("*trnrt/nki*")


def test_kernels_of_the_old_namespace(run: Run) -> None:
    """They fail with the line of the old code."""
    (run.pytester.path / "old.py").write_text(OLD)
    text = """
    import old

    def test_passes(nki_simulate):
        nki_simulate(old.add, A, A).equals(2 * A)
        nki_simulate(old.add_bare, A, A).equals(2 * A)

    @pytest.mark.nki_budget(us=1)
    def test_slow(nki_simulate):
        nki_simulate(old.add, A, A)

    def test_fails(nki_simulate):
        nki_simulate(old.add, A, A).equals(A)
    """
    result = run(dedent(text))
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["*us over the budget of 1 us", "*first: ?0, 0? is 2, expected 1,*"])
    result.stdout.fnmatch_lines(["*old.py:9 in add", "*nl.store(out, total)"])
    assert "neuronxcc" not in sys.modules


# ---- targets and releases


def test_targets_parametrise(run: Run) -> None:
    text = """
    from trnrt.nki.sim.kernel import default_target

    def test_fixture(nki_simulate, nki_target):
        nki_simulate(double, A).equals(2 * A)
        assert default_target() == nki_target == nki_simulate.target

    @pytest.mark.nki_budget(us=100)
    def test_budget():
        double(A)

    @pytest.mark.parametrize("nki_target", ["trn2"])
    def test_its_own(nki_simulate):
        nki_simulate(double, A).equals(2 * A)

    def test_other():
        pass
    """
    result = run(dedent(text), "-v", "--nki-target", "trn1,trn3", "--nki-target=trn1")
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(
        ["*test_fixture?trn1? PASSED*", "*test_fixture?trn3? PASSED*", "*test_budget?trn1?*", "*test_its_own?trn2?*"]
    )
    run.pytester.makeini("[pytest]\nnki_target = trn3\n")
    run(dedent(text)).assert_outcomes(passed=4)
    result = run(dedent(text), "--nki-target", "trn9")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --nki-target: *trn9*"])


def test_the_release_of_nki(run: Run) -> None:
    text = """
    def test_level(nki_simulate):
        import nki.isa
        @nki.jit
        def looped(a):
            for _ in nl.dynamic_range(1):
                out = double(a)
            return out
        nki_simulate(looped, A).equals(2 * A)
        assert not hasattr(nki.isa, "scalar_load")
    """
    run(dedent(text), "--nki", "0.6").assert_outcomes(passed=1)
    run(dedent(text)).assert_outcomes(failed=1)
    run.pytester.makeini("[pytest]\nnki_level = 0.6\n")
    run(dedent(text)).assert_outcomes(passed=1)
    result = run(dedent(text), "--nki", "0.5")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --nki: there is no language level '0.5'*"])
