package global

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// regionRepairs serves the Repairs of a fake region. It returns the slots of the region.
type regionRepairs struct {
	nusav1.UnimplementedRepairsServer
	r *fakeRegion
}

func (s *regionRepairs) Slots(_ *nusav1.HeldSlotsRequest, stream grpc.ServerStreamingServer[nusav1.HeldSlots]) error {
	for n := 0; s.r.flood.Load(); n++ {
		if err := stream.Send(&nusav1.HeldSlots{Slots: []*nusav1.HeldSlot{{Key: fmt.Sprintf("%d-%s", n, strings.Repeat("x", 1<<19)), Revision: 1}}}); err != nil {
			return err
		}
	}
	s.r.mu.Lock()
	out := &nusav1.HeldSlots{}
	for key, o := range s.r.slots {
		out.Slots = append(out.Slots, &nusav1.HeldSlot{Key: key, Revision: o.GetRevision()})
	}
	s.r.mu.Unlock()
	return stream.Send(out)
}

func (s *regionRepairs) Run(context.Context, *nusav1.ReconcileRequest) (*nusav1.ReconcileResponse, error) {
	return &nusav1.ReconcileResponse{Results: []*nusav1.ReconcileResult{{Tier: "region", Region: "alpha", Compared: 3}}}, nil
}

// reconciled returns the repairs of a comparison, and what was not compared.
func (s *testServer) reconciled() string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testWait)
	defer cancel()
	resp, err := nusav1.NewRepairsClient(s.conn).Run(ctx, &nusav1.ReconcileRequest{})
	if err != nil {
		s.t.Fatal(err)
	}
	var out []string
	compared := int64(0)
	for _, x := range resp.GetResults() {
		compared += x.GetCompared()
		for _, p := range x.GetRepairs() {
			out = append(out, fmt.Sprintf("%s %s", p.GetKind(), p.GetObject()))
		}
		if x.GetSkipped() != "" {
			out = append(out, x.GetTier()+" "+x.GetRegion()+": "+x.GetSkipped())
		}
	}
	if compared == 0 {
		s.t.Error("nothing was compared")
	}
	return strings.Join(out, ", ")
}

// withoutBeta returns the results without those of region beta, which is not connected, and the number
// of those.
func withoutBeta(results string) (others []string, named int) {
	results = strings.ReplaceAll(results, ", or for longer", "") // how long beta is cut off, on a slow machine
	for line := range strings.SplitSeq(results, ", ") {
		if strings.Contains(line, "region beta is ") {
			named++
		} else {
			others = append(others, line)
		}
	}
	return others, named
}

// TestPlantedDifferences: a slot that a region lost, one that it should not have, and records that
// differ from the memory are found and repaired. Then a comparison finds nothing.
func TestPlantedDifferences(t *testing.T) {
	s := newFederation().start(t, "g1")
	r := s.joined("alpha")
	s.serveTunnels(r)
	s.submit(testJob("api", 1))
	s.submit(testJob("web", 1))
	r.waitSlot("default/web/web/0", func(x *nusav1.Slot) bool { return x.GetState() == nusav1.SlotState_SLOT_STATE_ACCEPTED })
	r.waitSlot("default/api/web/0", func(x *nusav1.Slot) bool { return x.GetState() == nusav1.SlotState_SLOT_STATE_ACCEPTED })
	if got := s.reconciled(); got != "" {
		t.Errorf("a healthy federation: %s", got)
	}
	r.mu.Lock()
	delete(r.slots, "default/api/web/0")
	r.slots["default/old/web/0"] = &nusav1.SlotOrder{Slot: &nusav1.Slot{Namespace: "default", Job: "old", Group: "web", To: 1}, Revision: 1}
	r.mu.Unlock()
	if got := s.reconciled(); got != "region_lacks default/api/web/0, region_stray default/old/web/0" {
		t.Errorf("a region without a slot and with another one: %s", got)
	}
	r.wait("the order and the removal", func() bool {
		return r.slots["default/api/web/0"] != nil && r.slots["default/old/web/0"] == nil
	})
	// Another program writes to the store: a slot again, and a new region. It removes a job.
	slot, _, _, err := s.store.Get(t.Context(), "/nusa/v1/slots/default/web/web/0")
	if err != nil {
		t.Fatal(err)
	}
	region, _, _, err := s.store.Get(t.Context(), "/nusa/v1/regions/alpha")
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.store.Txn(t.Context(), nil, []store.Op{
		store.Put(slot.Key, slot.Value), store.Put("/nusa/v1/regions/beta", region.Value), store.Delete("/nusa/v1/jobs/default/api"), store.Delete("/nusa/v1/slots/default/api/web/0"),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"memory_lacks /nusa/v1/regions/beta", "memory_old /nusa/v1/slots/default/web/web/0", "memory_stray /nusa/v1/jobs/default/api", "memory_stray /nusa/v1/slots/default/api/web/0",
	}
	got, _ := withoutBeta(s.reconciled())
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("a memory that differs from the store: %q", got)
	}
	r.wait("the removal", func() bool { return r.slots["default/api/web/0"] == nil })
	r.flood.Store(true)
	if got := s.reconciled(); !strings.Contains(got, "many more slots than it should have") {
		t.Errorf("a region that never ends: %s", got)
	}
	r.flood.Store(false)
	if got, named := withoutBeta(s.reconciled()); len(got) > 0 || named != 2 {
		t.Errorf("after the repairs: %q, and %d lines about a region that is not connected", got, named)
	}
	_, err = nusav1.NewRepairsClient(s.conn).Run(t.Context(), &nusav1.ReconcileRequest{Region: "none"})
	if err == nil {
		t.Error("an unknown region is compared")
	}
}
