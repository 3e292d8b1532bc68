"""The scripts of the trial: published packages' own, unmodified. Nothing of theirs is kept in this repository."""

from __future__ import annotations

from dataclasses import dataclass

NUMBER = r"(-?\d+\.?\d*(?:[eE][-+]?\d+)?|-?nan|-?inf)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One script and how it is run.

    Attributes:
        name: in the table.
        package: on the package index.
        version: of it.
        repository: of the clone below `--programs` that holds the script, in the place of a package. The script runs
            in its own folder of a copy.
        ranks: so many processes, started by `torch.distributed.run`.
        data_at: where in that copy the data go.
        pretend: what sitecustomize.py pretends.
        path: of the script in the package's source distribution; empty for a module or a command.
        module: run with -m, from the installed package.
        command: the package's own console script.
        arguments: on its command line, relative to the folder it runs in.
        data: the function of data.py that makes its files.
        bad_data: the one that makes them with a NaN or Inf, where format and script let it through.
        poison: otherwise, what sitecustomize.py does; several faults, one after another.
        loss: finds its reported losses (or rewards, where it reports no loss) in what it prints.
        volatile: what it prints that is different in every run, besides times and rates.
        folder: it runs in this folder below its data.
        features: what it exercises.
    """

    name: str
    package: str = ""
    version: str = ""
    repository: str = ""
    ranks: int = 0
    data_at: str = "."
    pretend: str = ""
    path: str = ""
    module: str = ""
    command: str = ""
    arguments: str = ""
    data: str = "nothing"
    bad_data: str = ""
    poison: str = ""
    loss: str = "(?!)"
    volatile: str = ""
    folder: str = "."
    features: str = ""


SCRIPTS = (
    Script(
        name="ignite mnist",
        package="pytorch-ignite",
        version="0.5.5",
        path="examples/mnist/mnist.py",
        arguments="--epochs 2 --log_interval 1 --batch_size 32",
        data="mnist",
        poison="loader:4",
        loss=rf"Avg loss: {NUMBER}",
        features="ignite engine, SGD with momentum, dropout, tqdm, evaluation between epochs",
    ),
    Script(
        name="ignite save and resume",
        package="pytorch-ignite",
        version="0.5.5",
        path="examples/mnist/mnist_save_resume_engine.py",
        arguments="--epochs 2 --batch_size 32 --log_interval 2 --log_dir tb",
        data="mnist",
        poison="loader:4",
        loss=rf"Avg loss: {NUMBER}",
        features="deterministic engine, StepLR, checkpoints, TensorBoard, hooks on weights and gradients",
    ),
    Script(
        name="ignite dcgan",
        package="pytorch-ignite",
        version="0.5.5",
        path="examples/gan/dcgan.py",
        arguments="--dataset folder --dataroot images --workers 2 --batch-size 2 --z-dim 8 --g-filters 4 --d-filters 4 "
        "--epochs 1 --seed 1 --output-dir out",
        data="images",
        poison="loader:30",
        loss=rf"err[DG]: {NUMBER}",
        features="GAN, two Adam, two backward passes a step, BatchNorm, DataLoader workers, ImageFolder, checkpoints",
    ),
    Script(
        name="ignite super resolution",
        package="pytorch-ignite",
        version="0.5.5",
        path="examples/super_resolution/main.py",
        arguments="--crop_size 32 --upscale_factor 2 --batch_size 4 --n_epochs 2 --threads 1",
        data="caltech",
        poison="loader:3",
        loss=rf"Avg\. PSNR: {NUMBER}",
        volatile=r"(?s) -{20,}\n\| Time profiling.*|^[-\d./ |]*\d+\.\d{5}.*$",
        features="everything at module level, whole model pickled by torch.save, DataLoader worker, Adam",
    ),
    Script(
        name="ignite actor-critic",
        package="pytorch-ignite",
        version="0.5.5",
        path="examples/reinforcement_learning/actor_critic.py",
        arguments="--max-episodes 20 --log-interval 2",
        poison="reward:40",
        loss=rf"Last reward: {NUMBER}",
        features="RL, no DataLoader, one backward through many forward calls, loss from Python floats",
    ),
    Script(
        name="opacus char-lstm",
        package="opacus",
        version="1.6.0",
        path="examples/char-lstm-classification.py",
        arguments="--data-root names --device cpu --epochs 3 --batch-size 16 --learning-rate 0.5 --disable-dp",
        data="names",
        poison="module:Embedding:3",
        loss=rf"Loss: {NUMBER}",
        features="plain loop, LSTM, integer data, DataLoader worker, zero_grad after step, nested tqdm",
    ),
    Script(
        name="opacus private mnist",
        package="opacus",
        version="1.6.0",
        path="examples/mnist.py",
        arguments="--device cpu -n 3 -b 32 --data-root . --save-model",
        data="mnist",
        poison="loader:3",
        loss=rf"Loss: {NUMBER}",
        features="per-sample gradients by hooks, wrapped optimizer that clips and adds noise, Poisson batches",
    ),
    Script(
        name="torch-optimizer mnist",
        package="torch-optimizer",
        version="0.3.0",
        path="examples/mnist.py",
        data="mnist_in_data",
        poison="loader:3",
        folder="run",
        loss=rf"Loss: {NUMBER}",
        features="plain loop, third-party optimizer (DiffGrad), StepLR, TensorBoard histograms of gradients",
    ),
    Script(
        name="trl sft",
        package="trl",
        version="1.16.0",
        module="trl.scripts.sft",
        arguments="--model_name_or_path model --dataset_name text --output_dir out --max_steps 8 "
        "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --logging_steps 1 --report_to none --use_cpu "
        "--bf16 false --gradient_checkpointing false --seed 1",
        data="language_model",
        poison="module:Embedding:5",
        loss=rf"'loss': '?{NUMBER}",
        volatile=r"'train_(runtime|samples_per_second|steps_per_second)': '[^']*'",
        features="transformers Trainer, gradient accumulation, clipping, schedule, integer data, safetensors, -m",
    ),
    Script(
        name="trl dpo",
        package="trl",
        version="1.16.0",
        module="trl.scripts.dpo",
        arguments="--model_name_or_path model --dataset_name pairs --output_dir out --max_steps 8 "
        "--per_device_train_batch_size 4 --logging_steps 1 --report_to none --use_cpu --bf16 true "
        "--gradient_checkpointing true --seed 1",
        data="language_model",
        poison="module:Embedding:5",
        loss=rf"'loss': '?{NUMBER}",
        volatile=r"'train_(runtime|samples_per_second|steps_per_second)': '[^']*'",
        features="transformers Trainer, bfloat16 autocast, gradient checkpointing, frozen reference model, -m",
    ),
    Script(
        name="accelerate performance",
        package="accelerate",
        version="1.15.0",
        module="accelerate.test_utils.scripts.external_deps.test_performance",
        arguments="--model_name_or_path model --output_dir . --num_epochs 2",
        data="sentence_pairs",
        poison="module:Embedding:7",
        loss=rf"'accuracy': {NUMBER}",
        features="Accelerate loop, accumulate(), AdamW, linear schedule whose end the script asserts, save_model, -m",
    ),
    Script(
        name="chemprop train",
        package="chemprop",
        version="2.3.1",
        command="chemprop",
        arguments="train --data-path molecules.csv --descriptors-path descriptors.npz --epochs 3 --batch-size 8 "
        "--message-hidden-dim 16 --ffn-hidden-dim 16 --accelerator cpu --num-workers 0 --output-dir out "
        "--pytorch-seed 0 --no-descriptor-scaling",
        data="molecules",
        bad_data="molecules_with_inf",
        loss=rf"test/mse: {NUMBER}",
        features="Lightning Trainer, graph network, schedule, checkpoints reloaded, Inf on disk in every epoch",
    ),
    Script(
        name="rl_zoo3 ppo",
        package="rl-zoo3",
        version="2.9.2",
        module="rl_zoo3.train",
        arguments="--algo ppo --env CartPole-v1 -n 1536 --eval-freq -1 --seed 1 --device cpu -f logs",
        poison="reward:300",
        loss=rf"\|\s+(?:value_)?loss\s+\|\s+{NUMBER}",
        volatile=r"\|\s+(fps|time_elapsed)\s+\|[^|]*\|",
        features="RL (PPO), several epochs on one rollout, clipping, learning-rate schedule, model saved as zip, -m",
    ),
)
