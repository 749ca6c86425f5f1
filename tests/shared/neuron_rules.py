"""What the fake Neuron SDK refuses or does beyond signatures, and the words of the reference that say so.

``SDK_RULES`` and ``TORCH_RULES``: rule -> (what it says, in our words; page; a pattern of the line that states it).
``OWN_RULES`` no page states: the fake is smaller than the SDK, and refuses what it can't do. ``neuron_reference.py``
finds the lines. The fake names a rule where it raises, or in a comment "rule:" where it does what the rule says.
"""

from __future__ import annotations

_TRACE = "frameworks/torch/torch-neuronx/api-reference-guide/inference/api-torch-neuronx-trace.rst"
_PLACEMENT = "frameworks/torch/torch-neuronx/api-reference-guide/inference/api-torch-neuronx-core-placement.rst"
_COMPILER = "compiler/neuronx-cc/api-reference-guide/index.rst"
_CONFIGURATION = "neuron-runtime/guides/configuration-guide.rst"
_LNC = "about-neuron/arch/neuron-features/logical-neuroncore-config.rst"
_JIT = "nki/api/nki/__init__.py"
_CHIPS = "about-neuron/arch/neuron-hardware"

SDK_RULES = {
    "signature": ("a call binds to the signature that is recorded", _TRACE, r"py:function:: torch_neuronx.trace"),
    "keywords by name": ("trace takes its keywords by name only", _TRACE, r"Using ``args`` for ``kwargs``"),
    "what is traced": ("a function or module, and a tuple of tensors", _TRACE, r"example_inputs: A tuple of example"),
    "texts for the compiler": (
        "its arguments are a text, or a list of texts",
        _TRACE,
        r":keyword str,list\[str\] comp",
    ),
    "target of the CPU": ("cpu_backend needs --target", _TRACE, r"option to set the ``--target`` flag"),
    "shapes of the trace": ("a traced module takes tensors of the traced shapes", _TRACE, r"Fixed Input Shapes"),
    "tensors of the CPU": ("a traced module takes tensors of the CPU", _TRACE, r"to consume CPU tensors and produces"),
    "run on an instance": ("it runs on an instance with Neuron only", _TRACE, r"inference can only be executed on a"),
    "loaded after tracing": (
        "what is traced on an instance is on a core at once",
        _TRACE,
        r"initialized after tracing or",
    ),
    "no map_location": ("a Neuron module is loaded without map_location", _TRACE, r"a device or ``map_location`` arg"),
    "weights come each time": (
        "separate weights move with each run, until they are moved",
        _TRACE,
        r"done, a performance",
    ),
    "what is moved": (
        "move_trace_to_device takes what trace returned",
        _TRACE,
        r":arg ~torch.jit.ScriptModule trace: T",
    ),
    "one thread places": ("the context is not for several threads", _PLACEMENT, r"context is \*not\* threadsafe"),
    "cores of the process": (
        "cores are numbered among those that the process sees",
        _PLACEMENT,
        r"visible to this proc",
    ),
    "flags of the compiler": ("flags are those of the reference, each with its value", _COMPILER, r"``--framework"),
    "targets of the compiler": ("targets are those of the reference", _COMPILER, r"  - ``--target"),
    "graph.neff": ("the work directory has the NEFF", "nki/guides/use-neuron-profile.rst", r"graph.neff``"),
    "one LNC": ("a kernel's launch, the compiler and the environment agree", _JIT, r"The LNC value must match the"),
    "one LNC for the compiler": (
        "the compiler's LNC is the runtime's",
        _LNC,
        r"You must compile your Models to use the",
    ),
    "LNC by default": ("2 on trn2", _LNC, r"of two is the default setting on Trainium2"),
    "LNC of trn1": ("1 only", "compiler/error-codes/EARG001.rst", r"On trn1, only lnc=1 is supported"),
    "all cores are taken": (
        "the runtime takes all visible cores",
        _CONFIGURATION,
        r"initializes all the cores present",
    ),
    "taken cores": ("nobody else gets a core that is taken", _CONFIGURATION, r"Once a NeuronCore is reserved for"),
    "not available": (
        "what the runtime says then",
        "neuron-runtime/nrt-troubleshoot.rst",
        r"NeuronCore\(s\) not avail",
    ),
    "cores in a row": (
        "visible cores are contiguous",
        "neuron-runtime/guides/nrt-developer-guide.rst",
        r"must be contig",
    ),
    "whole seconds": ("the limit of a run is an integer", _CONFIGURATION, r"Timeout for execution in seconds"),
    "cores of trn1": ("2 to a device", f"{_CHIPS}/trainium.rst", r"each Trainium include 2 x"),
    "cores of trn2": ("8 to a device", f"{_CHIPS}/trainium2.rst", r"contains eight NeuronCore-V3 cores"),
    "cores of trn3": ("8 to a device", f"{_CHIPS}/trainium3.rst", r"contains eight NeuronCore-v4 cores"),
    "NEFF of another target": (
        "is not loaded",
        "neuron-runtime/nrtpy/nrtpy-troubleshooting.rst",
        r"different target arch",
    ),
}
TORCH_RULES = {
    "array of a tensor": ("of the CPU only", "torch/_tensor_docs.py", r"only if the tensor is on the CPU"),
    "read-only array": (
        "is not to be made a tensor",
        "torch/_torch_docs.py",
        r"read-only NumPy array is not supported",
    ),
    "parameter of a tensor": (
        "a parameter is made of a tensor",
        "torch/nn/parameter.py",
        r"data \(Tensor\): parameter",
    ),
    "registered parameter": (
        "a Parameter, by a plain name",
        "torch/nn/modules/module.py",
        r"parameter to be added to the",
    ),
    "what is saved": (
        "a ScriptModule, in a file",
        "torch/jit/_serialization.py",
        r"m: A :class:`ScriptModule` to save",
    ),
}
OWN_RULES = {
    "LNC of trn3 by default": "2, as on trn2; no page says it of trn3",
    "view of another size": "PyTorch scales the last dimension; the fake views as dtypes of the same size only",
    "weights beside the NEFF": "the fake compiles with inline_weights_to_neff=False only",
    "one kernel": "the fake compiles a module of one kernel, whose results it returns",
    "arguments of a kernel": "the fake records kernels that are called with tensors, by position",
    "order of the arguments": "the fake compiles a kernel of the inputs, then of the parameters",
    "one target": "the compiler's target and NEURON_PLATFORM_TARGET_OVERRIDE agree; no page says what happens else",
    "one core a load": "the fake loads a module on one core at a time",
}
