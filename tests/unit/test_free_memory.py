import torch

from fastkernels.free_memory import allocatable_bytes, available_bytes


def test_free_memory_is_plausible():
    assert 1 << 20 < available_bytes(torch.device("cpu")) < 1 << 50


def test_on_a_cpu_nothing_is_kept_of_freed_tensors(monkeypatch):
    monkeypatch.setattr("fastkernels.free_memory.available_bytes", lambda device: 7)
    assert allocatable_bytes(torch.device("cpu")) == 7


def test_on_a_gpu_what_pytorch_keeps_of_freed_tensors_is_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    assert available_bytes(torch.device("cuda")) == 100
    assert allocatable_bytes(torch.device("cuda")) == 130


def test_a_system_that_does_not_say_is_no_error(monkeypatch):
    monkeypatch.setattr("pathlib.Path.is_file", lambda path: False)
    assert allocatable_bytes(torch.device("cpu")) is None
