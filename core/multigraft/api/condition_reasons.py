"""Typed reasons of conditions that the operator sets; a failed job carries the trainer's own `Reason` instead."""

from __future__ import annotations

from enum import StrEnum


class JobReason(StrEnum):
    """Reasons of an AdapterJob's conditions, beside those of `Reason`."""

    PENDING_EVALUATION = "PendingEvaluation"  # not looked at yet
    SPEC_FITS_POOL = "SpecFitsPool"
    NO_QUOTA_SET = "NoQuotaSet"  # no tenant queue limits it
    SLOT_ASSIGNED = "SlotAssigned"
    FINISHED = "Finished"
    # why it has no slot
    WAITING_FOR_PREEMPTED_JOBS = "WaitingForPreemptedJobs"
    MEMORY_DOES_NOT_FIT = "MemoryDoesNotFit"
    POOL_DRAINING = "PoolDraining"
    BACK_OFF = "BackOff"
    PREEMPTED = "Preempted"
    REBALANCED = "Rebalanced"
    TRAINER_LOST = "TrainerLost"  # its pod is gone or leaving
    SPEC_CHANGED = "SpecChanged"
    # what the trainer says of it
    LOADING = "Loading"
    ADAPTER_LOADED = "AdapterLoaded"
    TRAINING = "Training"
    CHECKPOINTING = "Checkpointing"
    NOT_ADMITTED = "NotAdmitted"
    TRAINER_UNREACHABLE = "TrainerUnreachable"
    # the rest
    NOT_PREEMPTED = "NotPreempted"
    NOT_SUSPENDED = "NotSuspended"
    NOT_FAILED = "NotFailed"
    NOT_FINISHED = "NotFinished"
    ADAPTER_EXPORTED = "AdapterExported"


class PoolReason(StrEnum):
    """Reasons of a BaseModelPool's conditions, beside those of `Reason`."""

    TRAINERS_READY = "TrainersReady"
    TRAINERS_NOT_READY = "TrainersNotReady"
    NO_REPLICAS = "NoReplicas"
    SETTLED = "Settled"
    BASE_LOADED = "BaseLoaded"
    BASE_LOADING = "BaseLoading"
    SLOTS_FREE = "SlotsFree"
    NO_FREE_SLOT = "NoFreeSlot"
    NOT_DRAINING = "NotDraining"
    JOBS_LEAVING = "JobsLeaving"
    DELETION_BLOCKED = "DeletionBlocked"
    HEALTHY = "Healthy"
    POD_FAILING = "PodFailing"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    OUT_OF_MEMORY = "OOMKilled"
    UNSCHEDULABLE = "Unschedulable"
    QUOTA_EXCEEDED = "QuotaExceeded"
    NODE_LOST = "NodeLost"  # its node is silent; the pod is taken for gone once its object is
