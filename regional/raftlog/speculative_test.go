package raftlog

import (
	"math/rand"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/nusa-scheduler/nusa/regional/state"
)

// TestForeseenEqualsRead: a master that takes over what it foresaw and a server
// that reads the bytes have one state at every index, over random streams with
// Raft's own entries between, and leaderships lost.
func TestForeseenEqualsRead(t *testing.T) {
	for seed := range int64(60) {
		r := rand.New(rand.NewSource(seed))
		lead, follow := NewFSM(), NewFSM()
		index := uint64(0)
		a := lead.speculate(0)
		type e struct{ data []byte }
		var fly []e
		apply := func(data []byte) bool {
			index++
			x := lead.Apply(&raft.Log{Index: index, Data: data})
			cp := append([]byte(nil), data...)
			follow.Apply(&raft.Log{Index: index, Data: cp})
			if lead.View().Hash() != follow.View().Hash() || lead.View().Index() != follow.View().Index() {
				t.Fatalf("seed %d index %d differ", seed, index)
			}
			return x.(Applied).Predicted
		}
		cmd := func() state.Command {
			id := string(rune('a' + r.Intn(5)))
			now := int64(r.Intn(1e9))
			switch r.Intn(7) {
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
				return state.Command{NowUnixNano: now, SubmitLocalJob: &state.SubmitLocalJob{Job: state.Job{Key: state.JobKey{Namespace: "n", Job: id, Local: true}, Type: state.JobType(1 + r.Intn(2)), Spec: []byte{byte(r.Intn(3))}, Groups: []state.Group{{Name: "g", Count: int32(r.Intn(4)), Hash: uint64(r.Intn(3))}}}, Again: r.Intn(3) == 0}}
			case 5:
				return state.Command{NowUnixNano: now, StopLocalJob: &state.StopLocalJob{Namespace: "n", Name: id, Purge: r.Intn(2) == 0}}
			}
			var p state.PlaceGroup
			p.Key = state.GroupKey{Namespace: "n", Job: id, Group: "g", Local: true}
			p.JobVersion = int64(1 + r.Intn(3))
			for i := range 3 {
				p.Allocs = append(p.Allocs, state.PlaceAlloc{ID: string(rune(r.Intn(1 << 15))), Index: int32(i), NodeID: string(rune('a' + r.Intn(5)))})
			}
			return state.Command{NowUnixNano: now, ApplyPlan: &state.ApplyPlan{Places: []state.PlaceGroup{p}}}
		}
		astray := false
		for range 200 {
			switch r.Intn(8) {
			case 0: // Raft's own entry
				if r.Intn(3) == 0 {
					index++
				}
			case 1, 2: // commit
				if len(fly) > 0 {
					if !apply(fly[0].data) {
						astray = true
					}
					fly = fly[1:]
				}
			case 3: // lost and won again, some of the flight is lost
				if r.Intn(4) == 0 {
					for _, x := range fly[:r.Intn(len(fly)+1)] {
						apply(x.data)
					}
					fly = nil
					index++ // noop
					if r.Intn(2) == 0 {
						apply(encoded(t, cmd()))
					} // of another leader
					a, astray = lead.speculate(index), false
				}
			default:
				if astray {
					for _, x := range fly {
						apply(x.data)
					}
					fly = nil
					a, astray = lead.speculate(index), false
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
				fly = append(fly, e{data})
			}
		}
	}
}
