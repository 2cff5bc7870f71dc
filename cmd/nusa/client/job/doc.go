// Package job has the commands of `nusa job`: they submit jobs, and show where jobs run and
// why.
//
//   - command.go: the noun
//   - file.go: job files, job validate and job export
//   - init.go: job init
//   - plan.go: job plan
//   - plan_text.go: what a submit would change, as text
//   - run.go: job run
//   - many.go: job run --detach of several jobs
//   - wait.go: waiting until a submitted job runs
//   - progress.go: the progress of a job on one line
//   - status.go: job status
//   - slots.go: the slots of a job
//   - pending.go: why instances wait
//   - unknown.go: instances of regions that are cut off
//   - rollout.go: an update that goes from region to region
//   - totals.go: counts over all groups
//   - list.go: job list
//   - explain.go: job explain
//   - near.go: whether round trips are within their bounds
//   - stop.go: job stop
//   - schedule.go: job schedule, job dispatch
//   - schedules.go: job schedule list; times of schedules
//   - change.go: job scale, restart and wait
//   - history.go: job history, diff and tag
//   - steer.go: job revert, pause, resume and fail; the rollout in job status
package job
