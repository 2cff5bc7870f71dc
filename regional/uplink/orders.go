package uplink

import (
	"bytes"
	"iter"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/internal/link"
	"github.com/nusa-scheduler/nusa/internal/sets"
	"github.com/nusa-scheduler/nusa/job"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/regional/raftlog"
	"github.com/nusa-scheduler/nusa/regional/state"
	"github.com/nusa-scheduler/nusa/regional/wire"
)

// maxHold bounds how long the region holds instances that fit nowhere before it returns
// them.
const maxHold = time.Hour

// slotIDs returns the keys of the global tier's slots that this region has.
func slotIDs(fsm *raftlog.FSM) iter.Seq[string] {
	return func(yield func(string) bool) {
		for s := range fsm.View().Slots() {
			if !s.Local && !yield(s.ID()) {
				return
			}
		}
	}
}

// wholeOrders says in which session this master got all orders. An order that was stored at another feature level may
// lack what only present servers know, so it must be sent again.
type wholeOrders struct {
	known bool
	// level is the feature level of the region, and global that of the global tier.
	level, global uint32
}

// knownOrders returns the hash of the orders in the log; 0 if the global tier has to send all of them in the next
// leadership term.
func knownOrders(u *Uplink, view *state.View) uint64 {
	u.mu.Lock()
	whole := u.whole
	u.mu.Unlock()
	if !whole.known || whole.level != view.Cluster().FeatureLevel {
		return 0
	}
	return sets.HashOrders(whole.global, func(yield func(string, int64) bool) {
		for s := range view.Slots() {
			if !s.Local && !yield(s.ID(), s.Revision) {
				return
			}
		}
	})
}

// orderCommands turns a change of slot orders into commands. Each command fits a log entry,
// unless one order alone is larger. A command includes a job version if the state does not
// have it. It also includes the version if the state has another job with that name and
// version, because a name can be used again after its job was purged; and if the state has the version without fields
// that the servers of the region know only now.
func orderCommands(view *state.View, change link.Change[*nusav1.SlotOrder]) []*state.ApplyOrders {
	type version struct {
		key     state.JobKey
		version int64
	}
	const perSlot = 256 // about the bytes of an order besides the job
	included := map[version]bool{}
	position := state.Position(change.Position)
	cmd := &state.ApplyOrders{Position: position}
	out := []*state.ApplyOrders{cmd}
	size := 0
	for _, item := range change.Upserts {
		w := item.Value
		order := slotOrder(w)
		if view.Cluster().FeatureLevel >= state.AttemptsLevel {
			order.Attempts = wire.AttemptsFromProto(w.GetAttempts())
		}
		v := version{order.Slot.Key().JobKey(), w.GetSlot().GetJobVersion()}
		have, held := view.Job(v.key, v.version)
		if !included[v] && len(w.GetSpec()) > 0 && (!held || !bytes.Equal(have.Spec, w.GetSpec()) || view.Older(have)) {
			order.Job = orderedJob(w)
			included[v] = true
			if held && order.Job != nil && bytes.Equal(have.Spec, w.GetSpec()) && !view.Lacks(have, order.Job) {
				order.Job = nil
			}
		}
		if grows := perSlot + 2*len(w.GetSpec()); order.Job != nil && size > 0 && size+grows > raftlog.MaxEntryBytes || size > raftlog.MaxEntryBytes {
			cmd.More = true
			cmd, size = &state.ApplyOrders{Position: position}, 0
			out = append(out, cmd)
		}
		cmd.Orders = append(cmd.Orders, order)
		size += perSlot + 64*len(order.Attempts)
		if order.Job != nil {
			size += 2 * len(w.GetSpec())
		}
	}
	cmd.Removed = change.Removed
	return out
}

// slotOrder converts an order without its job.
func slotOrder(w *nusav1.SlotOrder) state.SlotOrder {
	s := w.GetSlot()
	return state.SlotOrder{Slot: state.Slot{
		Namespace: s.GetNamespace(), Job: s.GetJob(), Group: s.GetGroup(), From: s.GetFrom(), To: s.GetTo(),
		Generation: s.GetGeneration(), Revision: w.GetRevision(), JobVersion: s.GetJobVersion(), Run: s.GetRun(),
		Desired: state.Desired(s.GetDesired()), State: state.SlotState(s.GetState()),
		HoldNano: int64(min(max(s.GetHold().AsDuration(), 0), maxHold)), UnlessConnected: s.GetUnlessHeard(), Unbound: s.GetUnbound(),
		Parallel: s.GetParallel(),
	}}
}

// orderedJob returns the job of an order. It is nil when the spec cannot be decoded, and
// the state then rejects the slot.
func orderedJob(w *nusav1.SlotOrder) *state.Job {
	s, spec := w.GetSlot(), &nusav1.JobSpec{}
	if err := proto.Unmarshal(w.GetSpec(), spec); err != nil {
		return nil
	}
	job.Default(spec)
	// The job name of the slot counts, not the name in the spec.
	spec.Namespace, spec.Name = s.GetNamespace(), s.GetJob()
	return wire.JobFromProto(spec, w.GetSpec(), false, s.GetJobVersion())
}
