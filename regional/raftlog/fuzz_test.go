package raftlog

import (
	"bytes"
	"testing"

	"github.com/nusa-scheduler/nusa/regional/state"
)

// FuzzSnapshot: a snapshot with any bytes is refused or gives a state that is written as a snapshot
// and read again as the same state.
func FuzzSnapshot(f *testing.F) {
	st, index := state.New(), uint64(0)
	for _, c := range []state.Command{
		{Bootstrap: &state.Bootstrap{ClusterID: "c", Region: "r"}},
		{SetLimits: &state.SetLimits{FeatureLevel: state.FeatureLevel}},
		{UpsertNode: &state.UpsertNode{Node: state.Node{ID: "n", Name: "n", Pool: "p"}}},
		{CordonNode: &state.CordonNode{ID: "n", Cordon: true}},
		{BumpIncarnation: &state.BumpIncarnation{Incarnation: 2}},
		{CordonNode: &state.CordonNode{ID: "n"}},
	} {
		index++
		c.NowUnixNano = int64(index) * 1e9
		st.Apply(index, c)
	}
	write := func(st *state.State) []byte {
		var out bytes.Buffer
		if err := writeSnapshot(&out, st.Snapshot()); err != nil {
			f.Error(err)
		}
		return out.Bytes()
	}
	f.Add(write(st))
	f.Fuzz(func(t *testing.T, snapshot []byte) {
		if len(snapshot) > 1<<16 {
			t.Skip("larger than what the seeds lead to")
		}
		first, err := readSnapshot(bytes.NewReader(snapshot))
		if err != nil {
			return
		}
		for range first.Events().After(0) {
			break
		}
		first.Events().Gap(3)
		second, err := readSnapshot(bytes.NewReader(write(first)))
		if err != nil || first.Snapshot().Hash() != second.Snapshot().Hash() {
			t.Errorf("the state differs: %v", err)
		}
	})
}
