// Package letters tells the global tier which instances of batch jobs have no attempts left. The global tier
// makes dead letters of them.
//
//	letters.go  the DeadLetters service of a region
package letters

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/plant"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/state/retry"
	"github.com/nusa-scheduler/nusa/regional/wire"
	"github.com/nusa-scheduler/nusa/security/rights"
)

// Bounds of a request and of its response.
const (
	mostJobs      = 100
	mostSpans     = 4096
	mostInstances = 256
	mostBytes     = 1 << 20
	mostAttempts  = 10
	mostMessage   = 256
)

// Service is the DeadLetters service of a region.
type Service struct {
	nusav1.UnimplementedDeadLettersServer
	// View returns the committed state, and Region is the name of the region.
	View   func() *state.View
	Region string
}

// Collect implements nusav1.DeadLettersServer.
func (s *Service) Collect(_ context.Context, req *nusav1.CollectRequest) (*nusav1.CollectResponse, error) {
	if n := len(req.GetJobs()); n > mostJobs {
		return nil, rpcerr.Invalid(&nusav1.Problem{Field: "jobs", Message: fmt.Sprintf("has %d jobs, at most %d are allowed", n, mostJobs)})
	}
	view, out, bytes := s.View(), &nusav1.CollectResponse{}, 0
	for _, job := range req.GetJobs() {
		if n := len(job.GetCollected()); n > mostSpans {
			return nil, rpcerr.Invalid(&nusav1.Problem{Field: "jobs.collected", Message: fmt.Sprintf("has %d spans, at most %d are allowed", n, mostSpans)})
		}
		has := collected(job.GetCollected())
		for g := range view.JobGroups(state.JobKey{Namespace: job.GetNamespace(), Job: job.GetName()}) {
			for in := range view.InstancesIn(g) {
				if !in.Exhausted {
					continue
				}
				all := attemptsOf(in, slices.Collect(view.InstanceAllocs(g.Key, in.Index)))
				if len(all) == 0 || has(g.Key.Group, all[len(all)-1].JobVersion, in.Run, in.Index) {
					continue // the region has forgotten the last attempt, or the global tier has the letter
				}
				letter := s.letter(view, g.Key, in, all)
				bytes += proto.Size(letter)
				if len(out.Instances) == mostInstances || bytes > mostBytes && len(out.Instances) > 0 {
					out.More = true
					return out, nil
				}
				out.Instances = append(out.Instances, letter)
			}
		}
	}
	return out, nil
}

// collected returns a function that reports whether the global tier has an instance already.
func collected(spans []*nusav1.CollectedSpan) func(group string, version, run int64, index int32) bool {
	type of struct {
		group        string
		version, run int64
	}
	sorted := map[of][]*nusav1.CollectedSpan{}
	for _, s := range spans {
		k := of{s.GetGroup(), s.GetJobVersion(), s.GetRun()}
		sorted[k] = append(sorted[k], s)
	}
	for _, all := range sorted {
		slices.SortFunc(all, func(a, b *nusav1.CollectedSpan) int {
			return cmp.Or(cmp.Compare(a.GetFrom(), b.GetFrom()), cmp.Compare(a.GetTo(), b.GetTo()))
		})
	}
	return func(group string, version, run int64, index int32) bool {
		all := sorted[of{group, version, run}]
		at, _ := slices.BinarySearchFunc(all, index+1, func(s *nusav1.CollectedSpan, from int32) int { return cmp.Compare(s.GetFrom(), from) })
		return at > 0 && (index < all[at-1].GetTo() || plant.Is(plant.LetterOfNeighbour)) // spans do not overlap, except with single instances that are not stored yet
	}
}

// attemptsOf returns the attempts of an instance in its present run, and in the version of the last of them. The
// region also stores those of earlier runs and versions, and of a purged job of the same name. Run 0 comes from an
// earlier version of Nusa, and equals every run.
func attemptsOf(in *state.Instance, all []*state.Alloc) []*state.Alloc {
	var last *state.Alloc
	if len(all) > 0 {
		last = all[len(all)-1]
	}
	return slices.DeleteFunc(all, func(a *state.Alloc) bool {
		return a.JobVersion != last.JobVersion || a.Run != in.Run && a.Run != 0 && in.Run != 0
	})
}

// letter returns an instance without attempts left. all are its allocations, at least one.
func (s *Service) letter(view *state.View, key state.GroupKey, in *state.Instance, all []*state.Alloc) *nusav1.DeadLetter {
	last := all[len(all)-1]
	out := &nusav1.DeadLetter{
		Namespace: key.Namespace, Job: key.Job, Group: key.Group, Index: in.Index, JobVersion: last.JobVersion, Run: in.Run,
		Message: cut(in.Message), AttemptCount: max(in.Failures, int32(len(all))), Region: s.Region,
		Failed: wire.TimestampToProto(in.EndedUnixNano),
	}
	if text := wire.RetryText(view, key, in); text != "" {
		out.Message = cut(strings.TrimPrefix(out.Message+"; "+text, "; "))
	}
	for i, a := range all {
		if len(all)-i > mostAttempts {
			continue
		}
		f := failureOf(a)
		if in.Retry != nil && sameEnd(a, last) {
			f = &in.Retry.Last // as the agent reported it
		}
		out.Attempts = append(out.Attempts, &nusav1.FailedAttempt{
			Allocation: a.ID, Region: s.Region, Node: a.NodeName, Started: wire.TimestampToProto(a.RunningUnixNano),
			Ended: wire.TimestampToProto(a.ModifiedUnixNano), Failure: wire.FailureToProto(f), Message: cut(a.Message),
		})
	}
	out.Failure = out.Attempts[len(out.Attempts)-1].GetFailure()
	return out
}

// byReason are the categories of reasons that say enough.
var byReason = map[state.Reason]retry.Category{
	state.ReasonNodeLost: retry.NodeLost, "host_rebooted": retry.NodeLost, "max_runtime": retry.Timeout, "start_failed": retry.Start,
	state.ReasonUnsupported: retry.Config,
}

// sameEnd reports whether an attempt ended as the last one did. The agent's report of a failure is stored for the
// last attempt only, and holds for those that say the same.
func sameEnd(a, last *state.Alloc) bool {
	return a == last || a.Message != "" && a.Message == last.Message && a.Reason == last.Reason && a.State == last.State
}

// failureOf returns how an earlier attempt failed, as far as its stored states tell.
func failureOf(a *state.Alloc) *retry.Failure {
	f := &retry.Failure{Category: retry.App}
	tasks := wire.TasksFromStored(a.Tasks)
	names := make([]string, 0, len(tasks))
	for name := range tasks {
		names = append(names, name)
	}
	slices.Sort(names)
	reason := a.Reason
	for _, name := range names {
		t := tasks[name]
		if t.GetState() != nusav1.AllocState_ALLOC_STATE_FAILED {
			continue
		}
		f.Task = name
		if t.GetReason() == nusav1.Reason_REASON_UNSPECIFIED { // otherwise it did not end by itself, or never ran
			f.ExitCode, f.Signal = t.GetExitCode(), t.GetSignal()
		}
		if r := wire.ReasonFromProto(t.GetReason()); byReason[r] != "" {
			reason = r
		}
		break
	}
	if c := byReason[reason]; c != "" {
		f.Category = c
	}
	if a.State == state.Lost {
		f.Category = retry.NodeLost
	}
	return f
}

// cut bounds a message.
func cut(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), mostMessage)], "")
}

// elsewhere refuses a call that belongs to the global tier.
func elsewhere(ctx context.Context) error {
	if call := rights.Of(ctx); call != nil {
		call.Filtered() // the answer is the same for everybody
	}
	return status.Error(codes.FailedPrecondition, "dead letters are stored at the global tier: use --addr of a global server")
}

// List implements nusav1.DeadLettersServer.
func (s *Service) List(ctx context.Context, _ *nusav1.ListDeadLettersRequest) (*nusav1.ListDeadLettersResponse, error) {
	return nil, elsewhere(ctx)
}

// Get implements nusav1.DeadLettersServer.
func (s *Service) Get(ctx context.Context, _ *nusav1.GetDeadLetterRequest) (*nusav1.DeadLetter, error) {
	return nil, elsewhere(ctx)
}

// Redrive implements nusav1.DeadLettersServer.
func (s *Service) Redrive(ctx context.Context, _ *nusav1.RedriveRequest) (*nusav1.DeadLetter, error) {
	return nil, elsewhere(ctx)
}

// Drop implements nusav1.DeadLettersServer.
func (s *Service) Drop(ctx context.Context, _ *nusav1.DropDeadLetterRequest) (*nusav1.DeadLetter, error) {
	return nil, elsewhere(ctx)
}
