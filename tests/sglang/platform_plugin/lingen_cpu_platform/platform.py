"""The platform: torch's own attention, and Triton kernels in Triton's interpreter."""

import os

from sglang.srt.platforms.cpu import CpuDeviceMixin
from sglang.srt.platforms.device_mixin import PlatformEnum
from sglang.srt.platforms.interface import PlatformCapabilities, SRTPlatform

from lingen_cpu_platform.report import report_model


class CpuTestPlatform(CpuDeviceMixin, SRTPlatform):
    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    capabilities = PlatformCapabilities(supports_triton=os.environ.get("TRITON_INTERPRET") == "1")

    def get_default_attention_backend(self):
        return "torch_native"

    def get_dispatch_key_name(self):
        return "native"

    def is_pin_memory_available(self, device=None):
        return False

    def support_mamba_cache_extra_buffer(self):
        return True

    def supports_speculative_algorithm(self, algorithm):
        return True

    def supports_speculative_draft_attention_backend(self, algorithm, backend):
        return True

    def get_default_speculative_draft_attention_backend(self, algorithm):
        return "torch_native"

    def post_load_model(self, model):
        report_model(model)
