package regional_test

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/internal/filter"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// filteredLists checks lists with filters. The node, the job and its one allocation have these states, and no others of
// those that the lists know. "": it has none beside ready, or there is none.
func filteredLists(ctx context.Context, t *testing.T, w *world, node, job, alloc string, allocs int) {
	t.Helper()
	sea, land := map[string]string{"team": "sea"}, map[string]string{"team": "land"}
	same := func(what string, got, want int, err error) {
		if err != nil || got != want {
			t.Errorf("%s: %d, want %d, %v", what, got, want, err)
		}
	}
	one := func(is bool) int {
		if is {
			return 1
		}
		return 0
	}
	for _, state := range []string{"cordoned", "draining", "lost", "ready"} {
		list, err := nusav1.NewNodesClient(w.conn(1)).List(ctx, &nusav1.ListNodesRequest{States: []string{state}})
		same("nodes that are "+state, len(list.GetNodes()), one(state == node || state == "ready"), err)
	}
	for _, state := range filter.JobStates {
		list, err := nusav1.NewJobsClient(w.conn(1)).List(ctx, &nusav1.ListJobsRequest{States: []string{state}, Labels: sea})
		same("jobs that are "+state, len(list.GetJobs()), one(state == job), err)
		brief, err := nusav1.NewJobsClient(w.conn(1)).List(ctx, &nusav1.ListJobsRequest{States: []string{state}, Labels: sea, Brief: true})
		same("brief jobs that are "+state, len(brief.GetJobs()), len(list.GetJobs()), err)
		for i, j := range brief.GetJobs() {
			whole := list.GetJobs()[i].GetSpec()
			if got := j.GetSpec(); got.GetName() != whole.GetName() || len(got.GetGroups()) > 0 || len(whole.GetGroups()) == 0 {
				t.Errorf("brief: %v, whole: %v", got, whole)
			}
		}
	}
	for _, state := range filter.AllocationStates {
		list, err := nusav1.NewAllocationsClient(w.conn(1)).List(ctx, &nusav1.ListAllocationsRequest{States: []string{state}, Labels: sea})
		same("allocations that are "+state, len(list.GetAllocations()), one(state == alloc), err)
	}
	for _, labels := range []map[string]string{sea, land, nil} {
		list, err := nusav1.NewAllocationsClient(w.conn(1)).List(ctx, &nusav1.ListAllocationsRequest{Labels: labels})
		same(fmt.Sprint("allocations with ", labels), len(list.GetAllocations()), allocs*one(labels["team"] != "land"), err)
	}
	for what, call := range map[string]func() error{
		"nodes": func() error {
			_, err := nusav1.NewNodesClient(w.conn(1)).List(ctx, &nusav1.ListNodesRequest{States: []string{"asleep"}})
			return err
		},
		"allocations": func() error {
			_, err := nusav1.NewAllocationsClient(w.conn(1)).List(ctx, &nusav1.ListAllocationsRequest{States: []string{"asleep"}})
			return err
		},
		"overrides": func() error {
			_, err := nusav1.NewOverridesClient(w.conn(1)).List(ctx, &nusav1.ListOverridesRequest{States: []string{"asleep"}})
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s in an unknown state: %v", what, err)
		}
	}
}
