package raftlog

import (
	"bytes"
	"math/rand"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestPredictedStateEqualsDecodedState: a master that adopts its predictions and a server
// that decodes the entries have the same state at every index. The test uses random streams
// with entries of Raft's own and lost leaderships.
func TestPredictedStateEqualsDecodedState(t *testing.T) {
	for seed := range int64(60) {
		r := rand.New(rand.NewSource(seed))
		lead, follow := NewFSM(), NewFSM()
		index := uint64(0)
		var inFlight [][]byte
		apply := func(data []byte) bool {
			index++
			x := lead.Apply(&raft.Log{Index: index, Data: data})
			follow.Apply(&raft.Log{Index: index, Data: bytes.Clone(data)})
			if lead.View().Hash() != follow.View().Hash() || lead.View().Index() != follow.View().Index() {
				t.Fatalf("seed %d: the states differ at index %d", seed, index)
			}
			return x.(Applied).Predicted
		}
		cmd := func() state.Command {
			id := string(rune('a' + r.Intn(5)))
			now := int64(r.Intn(1e9))
			switch r.Intn(8) {
			case 0, 1:
				c := sample(id)
				c.NowUnixNano = now
				if r.Intn(2) == 0 {
					c.UpsertNode.Node.Labels = map[string]string{}
					c.UpsertNode.Node.Drivers = []state.Driver{}
					c.UpsertNode.Node.Inventory = []byte{}
				}
				if r.Intn(3) == 0 {
					c.UpsertNode.Node.Labels = nil
					c.UpsertNode.Node.Drivers = nil
					c.UpsertNode.Node.Inventory = nil
				}
				return c
			case 2:
				return state.Command{NowUnixNano: now, SetNodeStatus: &state.SetNodeStatus{ID: id, Status: state.NodeStatus(1 + r.Intn(3))}}
			case 3:
				return state.Command{NowUnixNano: now, RemoveNode: &state.RemoveNode{ID: id}}
			case 4:
				return state.Command{NowUnixNano: now, SubmitLocalJob: &state.SubmitLocalJob{Job: state.Job{Key: state.JobKey{Namespace: "n", Job: id, Local: true}, Type: state.JobType(1 + r.Intn(2)), Spec: []byte{byte(r.Intn(3))}, Groups: []state.Group{{Name: "g", Count: int32(r.Intn(4)), Hash: uint64(r.Intn(3))}}}, Again: r.Intn(3) == 0, Tag: []string{"", "", "a", "b"}[r.Intn(4)]}}
			case 5:
				return state.Command{NowUnixNano: now, StopLocalJob: &state.StopLocalJob{Namespace: "n", Name: id, Purge: r.Intn(2) == 0}}
			case 6:
				return state.Command{NowUnixNano: now, TagVersion: &state.TagVersion{Namespace: "n", Name: id, Version: int64(r.Intn(4)), Tag: []string{"", "a", "b"}[r.Intn(3)]}}
			}
			var p state.PlaceGroup
			p.Key = state.GroupKey{Namespace: "n", Job: id, Group: "g", Local: true}
			p.JobVersion = int64(1 + r.Intn(3))
			for i := range 3 {
				p.Allocs = append(p.Allocs, state.PlaceAlloc{ID: string(rune(r.Intn(1 << 15))), Index: int32(i), NodeID: string(rune('a' + r.Intn(5)))})
			}
			return state.Command{NowUnixNano: now, ApplyPlan: &state.ApplyPlan{Places: []state.PlaceGroup{p}}}
		}
		mispredicted := false
		apply(encoded(t, state.Command{SetLimits: &state.SetLimits{FeatureLevel: state.FeatureLevel}}))
		a := lead.speculate(index)
		for range 200 {
			switch r.Intn(8) {
			case 0: // an entry of Raft's own
				if r.Intn(3) == 0 {
					index++
				}
			case 1, 2: // commit
				if len(inFlight) > 0 {
					if !apply(inFlight[0]) {
						mispredicted = true
					}
					inFlight = inFlight[1:]
				}
			case 3: // leadership is lost and won again; some entries in flight are lost
				if r.Intn(4) == 0 {
					for _, x := range inFlight[:r.Intn(len(inFlight)+1)] {
						apply(x)
					}
					inFlight = nil
					index++             // the entry with which a term begins
					if r.Intn(2) == 0 { // an entry of another leader
						apply(encoded(t, cmd()))
					}
					a, mispredicted = lead.speculate(index), false
				}
			default:
				if mispredicted {
					for _, x := range inFlight {
						apply(x)
					}
					inFlight = nil
					a, mispredicted = lead.speculate(index), false
				}
				var all []state.Command
				for range 1 + r.Intn(2) {
					cmds := []state.Command{}
					for range 1 + r.Intn(3) {
						cmds = append(cmds, cmd())
					}
					all = append(all, cmds...)
					a.apply(cmds)
					a.view()
				}
				data := encoded(t, all...)
				a.closeEntry(data)
				inFlight = append(inFlight, data)
			}
		}
	}
}
