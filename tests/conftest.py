"""Rules for every test run. In CI a skipped test is a failed run wherever the shared folder lies beside the checkout:
everything that a skip could excuse (the real broker, real data, java) is there."""

from __future__ import annotations

import os

import pytest

from tests.shared import SHARED

pytest_plugins = ("tests.kafka",)

_skipped: list[str] = []


def skips_fail() -> bool:
    return os.environ.get("CI") == "true" and SHARED.exists()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        _skipped.append(f"{report.nodeid}: {reason}")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        _skipped.append(f"{report.nodeid}: the whole module")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _skipped and skips_fail() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _skipped and skips_fail():
        terminalreporter.section("skipped, although this is CI and the shared folder is here: a failed run")
        for line in _skipped:
            terminalreporter.line(line)
