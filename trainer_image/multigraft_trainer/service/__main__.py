"""`python -m multigraft_trainer.service`: one trainer of a pool, as it runs in a pod."""

from multigraft_trainer.service.command import trainer

trainer(prog_name="python -m multigraft_trainer.service")
