package tiers_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/agent/ordertest"
	"github.com/nusa-scheduler/nusa/agent/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// reconciled returns the repairs of a comparison of all tiers, and the number of compared objects by
// tier.
func (f *federation) reconciled(ctx context.Context) (repairs string, compared map[string]int64, err error) {
	resp, err := nusav1.NewRepairsClient(f.as("operator/jane", portStandby)).Run(ctx, &nusav1.ReconcileRequest{})
	var out []string
	compared = map[string]int64{}
	for _, x := range resp.GetResults() {
		compared[x.GetTier()] += x.GetCompared()
		for _, p := range x.GetRepairs() {
			out = append(out, fmt.Sprintf("%s %s %s", x.GetRegion(), p.GetKind(), p.GetObject()))
		}
		if x.GetSkipped() != "" {
			out = append(out, fmt.Sprintf("%s %s: %s", x.GetTier(), x.GetRegion(), x.GetSkipped()))
		}
	}
	return strings.Join(out, ", "), compared, err
}

// reconciles: a healthy federation has no differences. An allocation that an agent runs and that its
// region does not know is found and stopped.
func (f *federation) reconciles(t *testing.T) {
	f.eventually("nothing differs in a healthy federation", func(ctx context.Context) error {
		repairs, compared, err := f.reconciled(ctx)
		if err == nil && (repairs != "" || compared["global"] == 0 || compared["region"] == 0 || compared["agent"] == 0) {
			err = fmt.Errorf("%q, compared %v", repairs, compared)
		}
		return err
	})
	dir := t.TempDir()
	// An agent that stops before it has the first list of its orders gets the whole list later. A whole list replaces
	// what the agent has, so the region would not see the stray allocation.
	f.eventually("another agent has its orders", func(context.Context) error { return f.strayIn(dir) })
	// The region compares by itself after a reconnection. So the log of its master shows the repair, too.
	logged := f.logged(t, "a", "a difference was repaired", map[string]string{"kind": "agent_stray", "object": "n4/stray-allocation"})
	stop := f.agentIn(dir, "a", "n4", portA, portA+10, portA+20)
	f.eventually("the stray allocation is found", func(ctx context.Context) error {
		repairs, _, err := f.reconciled(ctx)
		select {
		case <-logged:
			return nil
		default:
		}
		if err == nil && !strings.Contains(repairs, "a agent_stray n4/stray-allocation") {
			err = fmt.Errorf("found %q", repairs)
		}
		return err
	})
	f.eventually("nothing differs after the repair", func(ctx context.Context) error {
		repairs, _, err := f.reconciled(ctx)
		if err == nil && repairs != "" {
			err = fmt.Errorf("found %q", repairs)
		}
		return err
	})
	stop()
	for _, member := range []string{"region/a/server/s2", "region/a/agent/n1"} {
		_, err := nusav1.NewRepairsClient(f.as(member, portA)).Run(t.Context(), &nusav1.ReconcileRequest{})
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s reconciles: %v", member, err)
		}
	}
}

// strayIn runs agent n4 until the node is ready, and then stores an allocation in its data directory that its region
// does not know. It returns an error if the agent has no list of its orders yet.
func (f *federation) strayIn(dir string) error {
	stop := f.agentIn(dir, "a", "n4", portA, portA+10, portA+20)
	f.eventually("another agent is ready", func(ctx context.Context) error {
		r, err := nusav1.NewNodesClient(f.as("operator/jane", portA)).Get(ctx, &nusav1.GetNodeRequest{Id: "n4"})
		if err == nil && r.GetState() != nusav1.NodeState_NODE_STATE_READY {
			err = fmt.Errorf("the node is %v", r.GetState())
		}
		return err
	})
	stop()
	st, err := store.Open(filepath.Join(dir, "agent.db"))
	if err != nil {
		return err
	}
	have, err := st.Load()
	if err == nil && have.Position.Epoch == "" {
		err = errors.New("the agent has no list of its orders")
	}
	if err == nil {
		err = st.Write(store.OrderBatch([]*nusav1.AllocOrder{ordertest.New("stray-allocation", 1, "mock", map[string]any{})}, nil, have.Position))
	}
	return errors.Join(err, st.Close())
}

// logged returns a channel that is closed when the master of a region logs a message with attributes. An
// operator follows the log, through both tiers.
func (f *federation) logged(t *testing.T, region, message string, attributes map[string]string) <-chan struct{} {
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := nusav1.NewMonitorClient(f.as("operator/jane", portStandby)).Member(ctx, &nusav1.MonitorMemberRequest{Region: region, Level: "warn"})
	if err == nil {
		_, err = stream.Header()
	}
	if err != nil {
		t.Fatal(err)
	}
	seen, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	go func() {
		defer close(ended)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			n := 0
			for _, a := range r.GetAttributes() {
				if want, ok := attributes[a.GetKey()]; ok && want == a.GetValue() {
					n++
				}
			}
			if r.GetMessage() == message && n == len(attributes) {
				close(seen)
				return
			}
		}
	}()
	return seen
}
