"""Megatron-LM's flags that the trainer does not implement: harmless, or refused, and why.

Names come from upstream.py; a name that ends in * stands for all with that prefix. A test checks
that every one of Megatron-LM's flags has exactly one place: in the parser, or here.
"""

from __future__ import annotations

# The trainer does without what these ask for, and the training is the same: they are accepted.
NO_EFFECT = {
    "there are no such fused kernels here":
        "--no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion "
        "--no-bias-swiglu-fusion --no-rope-fusion --no-persist-layer-norm "
        "--no-gradient-reduce-div-fusion --cross-entropy-loss-fusion --cross-entropy-fusion-impl "
        "--use-te-activation-func --no-clone-scatter-output-in-embedding",
    "torch's AdamW updates the state that is in host memory":
        "--use-torch-optimizer-for-cpu-offload",
    "gradients, master weights, and moments of the optimizer are always in fp32":
        "--use-precision-aware-optimizer",
    "GEMMs accumulate weight gradients where dtypes allow": "--no-gradient-accumulation-fusion",
    "these all-reduces are never asynchronous here": "--no-async-tensor-model-parallel-allreduce",
    "attention scores are never divided by the layer number": "--no-query-key-layer-scaling",
    "the softmax is always computed in fp32": "--attention-softmax-in-fp32",
    "parameters are always initialized on the CPU":
        "--use-cpu-initialization --lazy-mpu-init --init-model-with-meta-device",
    "parameters are always initialized": "--no-initialization",
    "dropout and data order have no state to load or save":
        "--no-load-rng --no-save-rng --te-rng-tracker",
    "data files are always memory-mapped, and read without worker threads":
        "--mmap-warmup --no-mmap-bin-files --num-dataset-builder-threads "
        "--mid-level-dataset-surplus --no-create-attention-mask-in-dataloader",
    "there is one checkpoint format here, and a thread writes what --async-save asks for":
        "--use-persistent-ckpt-worker --auto-detect-ckpt-format "
        "--ckpt-fully-parallel-save --no-ckpt-fully-parallel-save --ckpt-fully-parallel-load "
        "--ckpt-assume-constant-structure --dist-ckpt-* --distrib-optim-fully-* "
        "--no-use-tokenizer-model-from-checkpoint-args",
    "no checkpoint is ever deleted": "--save-retain-interval",
    "there is one implementation of the model here": "--use-mcore-models --use-legacy-models",
    "it is for programs that do something other than train a GPT":
        "--inference-* --max-tokens-to-oom --output-bert-embeddings --bert-embedder-type "
        "--flash-decode --use-legacy-static-engine --symmetric-ar-type "
        "--nccl-all-reduce-for-prefill --mlp-chunks-for-prefill --disable-chunked-prefill "
        "--decode-only-cuda-graphs --onnx-safe --bert-no-binary-head --mask-prob --short-seq-prob "
        "--retriever-seq-length --allow-ambiguous-pad-tokens",
    "the trainer does not report this":
        "--log-straggler --disable-straggler-on-startup --straggler-* --log-progress --log-energy "
        "--run-workload-inspector-server --config-logger-dir --record-memory-history "
        "--memory-snapshot-path --logging-level --dump-param-to-param-group-map",
    "curves go only to --tensorboard-dir":
        "--wandb-* --no-one-logger --one-logger-* --app-tag-*",
    "it belongs to NVIDIA's own clusters":
        "--enable-ft-package --calc-ft-timeouts --adlr-autoresume --adlr-autoresume-interval",
    "a NaN is logged, and no result is computed twice":
        "--no-check-for-nan-in-loss-and-grad --check-for-spiky-loss --check-for-large-grads "
        "--rerun-mode --result-rejected-tracker-filename "
        "--check-weight-hash-across-dp-replicas-interval",
    "a global batch size that is not divisible is an error": "--decrease-batch-size-if-needed",
    "memory and garbage collection are left to PyTorch and Python":
        "--manual-gc --manual-gc-interval --no-manual-gc-eval --empty-unused-memory-level "
        "--no-pin-cpu-grads --no-pin-cpu-params --train-sync-interval",
    "runs are always deterministic on the CPU and on virtual GPUs": "--deterministic-mode",
    "it tunes a library that the trainer leaves as it is":
        "--high-priority-stream-groups --use-nccl-ub --disable-symmetric-registration "
        "--nccl-communicator-config-path --use-ring-exchange-p2p --tp-comm-bootstrap-backend "
        "--disable-gloo-process-groups --disable-bf16-reduced-precision-matmul "
        "--no-barrier-with-level-1-timing",
    "how communication overlaps follows from the schedule and the buckets":
        "--no-overlap-p2p-communication --overlap-p2p-communication-warmup-flush "
        "--no-align-grad-reduce --no-align-param-gather --ddp-pad-buckets-for-high-nccl-busbw "
        "--ddp-average-in-collective --no-contiguous-buffers-in-local-ddp",
    "this is off unless --scatter-gather-tensors-in-pipeline is given":
        "--no-scatter-gather-tensors-in-pipeline",
    "Megatron-LM ignores it, too": "--fp8-interval",
    "tokenizers are read as data, never as code": "--legacy-tokenizer --trust-remote-code",
    "there are no experimental features here": "--enable-experimental",
    "files are read without NVIDIA's Multi-Storage Client": "--disable-msc",
}
# With these values, a flag asks for what the trainer does anyway; others are refused.
HARMLESS_VALUES = {
    "--attention-backend": "auto local unfused", "--context-parallel-size": "1",
    "--cp-comm-type": "p2p", "--ckpt-format": "torch", "--cuda-graph-impl": "none",
    "--dataloader-type": "single",
    "--error-injection-rate": "0", "--exp-avg-dtype": "fp32", "--exp-avg-sq-dtype": "fp32",
    "--expert-model-parallel-size": "1", "--expert-tensor-parallel-size": "1",
    "--lr-warmup-init": "0 0.0", "--main-grads-dtype": "fp32", "--main-params-dtype": "fp32",
    "--pipeline-model-parallel-comm-backend": "nccl",
    "--recompute-modules": "core_attn", "--rope-type": "rope", "--sample-rate": "1 1.0",
    "--softmax-type": "vanilla", "--transformer-impl": "local transformer_engine",
    "--vocab-extra-ids": "0", "--weight-decay-incr-style": "constant",
}
# The trainer lacks what these ask for, and the training would be another one: they are refused.
REFUSED = {
    "another name": "--norm-epsilon --persistent-save-interval --checkpoint-granularity "
                    "--checkpoint-method --checkpoint-num-layers",
    "it is no longer valid": "--batch-size --warmup --model-parallel-size --checkpoint-activations",
    "the trainer has no mixture of experts":
        "--moe-* --num-experts --expert-* --overlap-moe-expert-parallel-comm --delay-wgrad-compute",
    "the trainer has no context parallelism":
        "--context-parallel-size --cp-comm-type --hierarchical-context-parallel-sizes",
    "the trainer has no multi-latent attention":
        "--multi-latent-attention --q-lora-rank --kv-lora-rank --qk-head-dim --qk-pos-emb-head-dim "
        "--v-head-dim --rotary-scaling-factor --mscale --mscale-all-dim --cache-mla-latents",
    "the trainer has no such attention":
        "--attention-backend --softmax-type --window-size --window-attn-skip-freq "
        "--qk-l2-norm --add-qkv-bias --apply-query-key-layer-scaling",
    "the trainer has learned and rotary position embeddings, without variants":
        "--use-rotary-position-embeddings --no-position-embedding --relative-attention-* "
        "--rotary-interleaved --rotary-seq-len-interpolation-factor --use-rope-scaling "
        "--rope-scaling-factor --rope-type --no-rope-freq --mrope-section",
    "the trainer has no such block":
        "--apply-layernorm-1p --apply-residual-connection-post-layernorm --openai-gelu "
        "--quick-geglu --activation-func-clamp-value --glu-linear-offset --transformer-impl "
        "--spec --heterogeneous-layers-* --mtp-* --use-fused-weighted-squared-relu",
    "the trainer has decoder-only Transformers, no other models":
        "--encoder-num-layers --decoder-num-layers --decoder-seq-length --vocab-extra-ids "
        "--pipeline-model-parallel-split-rank --retro-* --hybrid-* --mamba-* --is-hybrid-model "
        "--disable-mamba-mem-eff-path --ict-* --biencoder-* --bert-load --titles-data-path "
        "--query-in-block-prob --use-one-sent-docs --evidence-data-path --retriever-report-* "
        "--retriever-score-scaling --block-data-path --embedding-path --indexer-* --num-classes "
        "--img-h --img-w --num-channels --patch-dim --classes-fraction --data-per-class-fraction "
        "--no-data-sharding --head-lr-mult --vision-* --swin-backbone-type --mask-type "
        "--mask-factor --iter-per-epoch --dino-*",
    "the trainer only pretrains, without reinforcement learning or fine-tuning":
        "--perform-rl-step --rl-* --no-rl-* --grpo-* --langrl-* --no-langrl-* --sft --sft-*",
    "the trainer has Adam with fp32 state":
        "--sgd-momentum --muon-* --main-grads-dtype --main-params-dtype --exp-avg-dtype "
        "--exp-avg-sq-dtype",
    "the weight decay is constant":
        "--weight-decay-incr-style --start-weight-decay --end-weight-decay",
    "the learning rate warms up from 0, is the same for all layers, and has no WSD schedule":
        "--lr-wsd-* --lr-warmup-init --decoupled-lr --decoupled-min-lr",
    "the batch size is constant": "--rampup-batch-size",
    "every sample counts once, in order":
        "--iterations-to-skip --sample-rate --dataloader-type --reset-position-ids "
        "--reset-attention-mask --calculate-per-token-loss",
    "the trainer has one initialization":
        "--data-parallel-random-init --embedding-init-method-std --init-method-xavier-uniform",
    "the trainer has no FP4, and the FP8 recipes of --fp8-recipe":
        "--fp4-* --fp8-quantizer-factory --kitchen-* --reuse-grad-buf-for-mxfp8-param-ag "
        "--keep-fp8-transpose-cache",
    "the trainer computes residuals, losses, and gradient sums in the dtypes that docs/trainer.md "
    "lists": "--fp32-residual-connection --fp16-lm-cross-entropy --grad-reduce-in-bf16 "
             "--ddp-reduce-scatter-with-fp32-accumulation",
    "layers are recomputed whole, or their core attention is": "--recompute-modules",
    "sharding follows --data-parallel-sharding-strategy, one transformer layer at a time":
        "--use-torch-fsdp2 --fsdp-* --enable-full-sharding-in-hsdp "
        "--suggested-communication-unit-size --no-strict-fsdp-dtensor-load",
    "parameters are all-gathered after the whole optimizer step":
        "--overlap-param-gather-with-optimizer-step",
    "--tp-comm-overlap has no variants here":
        "--tp-comm-overlap-cfg --disable-tp-comm-* --tp-comm-overlap-rs-dgrad",
    "the schedule decides what each stage computes, and when":
        "--num-virtual-stages-per-pipeline-rank --microbatch-group-size-per-virtual-pipeline-stage "
        "--defer-embedding-wgrad-compute --wgrad-deferral-limit",
    "layers are assigned to stages differently here":
        "--decoder-first-pipeline-num-layers --decoder-last-pipeline-num-layers "
        "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split "
        "--standalone-embedding-stage",
    "communication takes other paths here":
        "--pipeline-model-parallel-comm-backend --use-sharp --sharp-enabled-group "
        "--use-tp-pp-dp-mapping --distributed-timeout-seconds-after-init --ddp-num-buckets",
    "there are no CUDA graphs here":
        "--enable-cuda-graph --external-cuda-graph --cuda-graph-*",
    "Slurm requeues a failed job; the trainer does not restart itself":
        "--inprocess-* --replication --replication-jump --replication-factor --error-injection-*",
    "steps are profiled differently here":
        "--profile --profile-step-start --profile-step-end --use-pytorch-profiler",
    "checkpoints are Megatron-LM's torch format, in one folder":
        "--ckpt-format --use-dist-ckpt --ckpt-convert-* --non-persistent-* --ckpt-step "
        "--load-main-params-from-ckpt --pretrained-checkpoint --exit-on-missing-checkpoint",
    "all flags are on the command line":
        "--use-checkpoint-args --use-mp-args-from-checkpoint-args --yaml-cfg",
    "text comes from one data set, divided by --split":
        "--train-data-path --valid-data-path --test-data-path --data-args-path "
        "--per-split-data-args-path --object-storage-cache-path --mock-data",
    "the tokenizer is GPT-2's byte-level BPE, or one in Hugging Face's format":
        "--tokenizer-metadata --tiktoken-*",
    "the vocabulary is padded to a multiple": "--padded-vocab-size",
    "validation reads --eval-iters batches, between training steps":
        "--full-validation --multiple-validation-sets --test-mode --skip-train",
}
# What to write instead.
INSTEAD = {
    "--norm-epsilon": "--layernorm-epsilon", "--persistent-save-interval": "--save-interval",
    "--checkpoint-granularity": "--recompute-granularity",
    "--checkpoint-method": "--recompute-method",
    "--checkpoint-num-layers": "--recompute-num-layers",
    "--batch-size": "--micro-batch-size", "--warmup": "--lr-warmup-fraction",
    "--model-parallel-size": "--tensor-model-parallel-size",
    "--checkpoint-activations": "--recompute-activations, or for more control "
                                "--recompute-granularity and --recompute-method,",
    "--attention-backend": "--use-flash-attn for flash",
    "--use-rotary-position-embeddings": "--position-embedding-type rope",
    "--no-position-embedding": "--position-embedding-type rope",
    "--encoder-num-layers": "--num-layers", "--decoder-num-layers": "--num-layers",
    "--decoder-seq-length": "--seq-length", "--rampup-batch-size": "--global-batch-size",
    "--start-weight-decay": "--weight-decay", "--end-weight-decay": "--weight-decay",
    "--weight-decay-incr-style": "--weight-decay", "--grad-reduce-in-bf16": "--bf16",
    "--recompute-modules": "--recompute-granularity selective",
    "--use-torch-fsdp2":
        "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params",
    "--num-virtual-stages-per-pipeline-rank": "--num-layers-per-virtual-pipeline-stage",
    "--decoder-first-pipeline-num-layers": "--balance, such as --balance 5-6-6-7",
    "--decoder-last-pipeline-num-layers": "--balance, such as --balance 7-6-6-5",
    "--account-for-embedding-in-pipeline-split": "--balance, such as --balance 5-6-6-6",
    "--account-for-loss-in-pipeline-split": "--balance, such as --balance 6-6-6-5",
    "--standalone-embedding-stage": "--balance, such as --balance 0-8-8-8",
    "--distributed-timeout-seconds-after-init": "--distributed-timeout-minutes",
    "--ddp-num-buckets": "--ddp-bucket-size", "--inprocess-restart": "#SBATCH --requeue",
    "--profile": "--profile-execution yes with --tensorboard-dir",
    "--use-pytorch-profiler": "--profile-execution yes with --tensorboard-dir",
    "--pretrained-checkpoint": "--finetune with --load", "--ckpt-format": "--ckpt-format torch",
    "--non-persistent-save-interval": "--save-interval",
    "--train-data-path": "--data-path and --split", "--valid-data-path": "--data-path and --split",
    "--test-data-path": "--data-path and --split",
    "--mock-data": "--data-path with the text that `lab data` prepares",
    "--padded-vocab-size": "--make-vocab-size-divisible-by",
}
