"""Failures of a training step: shapes, labels, gradients."""

from seatrial.findings.known import Known

_FORUM = "https://docs.pytorch.org/docs/stable/"

TRAINING_STEP = (
    Known(
        id="shapes-do-not-fit",
        title="Two tensors have shapes that do not fit together",
        symptoms=(
            "mat1 and mat2 shapes cannot be multiplied",
            "RuntimeError: The size of tensor a (",
            "RuntimeError: Given groups={groups}, weight of size … to have {needed} channels, but got",
            "ValueError: Expected input batch_size (",
            "ValueError: Using a target size (",
            "RuntimeError: shape '{shape…}' is invalid for input of size",
            "RuntimeError: Sizes of tensors must match except in dimension",
            "is incompatible with the layer: expected shape=",
            "InvalidArgumentError: Incompatible shapes:",
            "logits and labels must be broadcastable:",
            "InvalidArgumentError: Matrix size-incompatible:",
        ),
        cause="A layer was made for another size than the one before it gives, or the data has other dimensions than "
        "the model was written for",
        fix="print(batch.shape) before the line that the traceback names, and compare with the sizes in the message",
        sources=(_FORUM + "notes/broadcasting.html",),
    ),
    Known(
        id="label-out-of-range",
        title="A label or a token is not less than the number of classes or of embeddings",
        symptoms=(
            "IndexError: Target {label} is out of bounds",
            "IndexError: index out of range in self",
            "Received a label value of {label} which is outside the valid range",
        ),
        cause="The last layer has fewer outputs than the data has classes, labels count from 1 in place of 0, or the "
        "tokenizer has more words than the embedding",
        fix="print(labels.min(), labels.max()), and give the last layer (or the embedding) one more than the largest",
        sources=(_FORUM + "generated/torch.nn.CrossEntropyLoss.html",),
    ),
    Known(
        id="label-type",
        title="The loss was given labels of another number type",
        symptoms=(
            "expected scalar type Long but found",
            "nll_loss_forward_reduce_cuda_kernel_2d_index' not implemented for",
            "nll_loss_forward_no_reduce_cuda_kernel_index' not implemented for",
            "'nll_loss_out_frame' not implemented for",
        ),
        cause="Class numbers have to be int64 for cross entropy",
        fix="labels.long()   # for a loss between real numbers: labels.float()",
        sources=(_FORUM + "generated/torch.nn.CrossEntropyLoss.html",),
    ),
    Known(
        id="backward-twice",
        title="backward() went twice through the same computation",
        symptoms=("Trying to backward through the graph a second time",),
        cause="A tensor of an earlier step is part of this step's loss: a hidden state, a running sum, a cached output",
        fix="hidden = hidden.detach() between the steps; loss.item() where losses are summed up",
        sources=(_FORUM + "notes/autograd.html",),
    ),
    Known(
        id="no-gradient",
        title="The loss depends on nothing that can be trained",
        symptoms=("does not require grad and does not have a grad_fn",),
        cause="All parameters are frozen, or the loss was computed under no_grad(), with .item(), .detach() or NumPy",
        fix="print(sum(p.requires_grad for p in model.parameters())), and compute the loss with torch alone",
        sources=(_FORUM + "notes/autograd.html",),
    ),
    Known(
        id="loss-not-scalar",
        title="backward() was called on more than one number",
        symptoms=("grad can be implicitly created only for scalar outputs",),
        cause="DataParallel gives one loss for each GPU, or the loss was made with reduction='none'",
        fix="loss.mean().backward()",
        sources=("huixiancheng/CENet#8",),
    ),
    Known(
        id="kernel-timeout",
        title="The driver stopped a kernel that ran too long",
        symptoms=("the launch timed out and was terminated", "CUDA_ERROR_LAUNCH_TIMEOUT"),
        cause="A GPU that draws a screen ends kernels after a few seconds, so that the screen does not freeze",
        fix="nvidia-smi   # under Processes, is there Xorg? Take a GPU without a screen, or a smaller batch",
        sources=("https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html",),
    ),
)
