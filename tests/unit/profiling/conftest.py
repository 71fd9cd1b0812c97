from tests.unit.report.conftest import kernel_report

__all__ = ["kernel_report"]
