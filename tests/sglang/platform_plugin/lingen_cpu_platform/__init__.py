"""A CPU platform for SGLang 0.5.23, for tests. Its two entry points import nothing until called."""


def platform_class() -> str:
    return "lingen_cpu_platform.platform.CpuTestPlatform"


def register_hooks() -> None:
    from lingen_cpu_platform import drafting, hooks

    hooks.register()
    drafting.register()
