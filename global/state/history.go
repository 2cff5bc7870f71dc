package state

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/nusa-scheduler/nusa/global/history"
	"github.com/nusa-scheduler/nusa/global/place"
	"github.com/nusa-scheduler/nusa/global/region"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/jobstatus"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// A job that has ended, and that no caller has changed for some time, moves to the history. There
// one record replaces all its other records, and memory keeps only one line of it, for lists. The
// job returns when a caller submits or stops it again. A request that needs the record reads it
// first (Recall). The transaction of that request then stores the job as before.

const (
	historyPrefix = root + "history/"
	// historyLevel is the feature level from which servers know the history.
	historyLevel = 3
	// historyOverhead is the number of bytes that count in Room for a job in the history, in
	// addition to the size of its record.
	historyOverhead = 256
	// historyMessage is the greatest number of bytes of the message in a line of the history.
	historyMessage = 200
)

// historyKey returns the store key of the job's record in the history.
func (k JobKey) historyKey() string { return historyPrefix + k.String() }

// leaving is a job that may move to the history.
type leaving struct {
	key JobKey
	// changes is the value of Job.Changes when the job may have ended, and since is that time.
	changes uint64
	since   time.Duration
}

// InHistory reports whether a job is in the history. The lock is held.
func InHistory(st *State, k JobKey) bool {
	_, ok := inHistory(st, k)
	return ok
}

// MayBeInHistory reports whether a job is in the history, or may be there because the history is
// still being read and nobody has asked for the job. Past tells which. The lock is held.
func MayBeInHistory(st *State, k JobKey) bool {
	return InHistory(st, k) || !st.History.Certain(k.String())
}

// inHistory returns the entry of a job in the history. A job that is also in memory counts as not
// being in the history: a server that does not know the history may have stored the job again.
func inHistory(st *State, k JobKey) (history.Entry, bool) {
	if j := st.Jobs[k]; j != nil && j.Record != nil {
		return history.Entry{}, false
	}
	return st.History.Get(k.String())
}

// Exists reports whether a job exists, in memory or in the history. The lock is held.
func Exists(st *State, name string) bool {
	if j := st.Jobs[keyOfName(name)]; j != nil && j.Record != nil {
		return true
	}
	_, ok := st.History.Get(name)
	return ok
}

func keyOfName(name string) JobKey {
	namespace, job, _ := strings.Cut(name, "/")
	return JobKey{namespace, job}
}

// markHistory says in the message of a job that only its record in the history is left.
func markHistory(j *nusav1.Job) {
	if j.Status != nil {
		j.Status.Message = joinText(j.GetStatus().GetMessage(), "kept as history")
	}
}

// Line returns a job that is in the history in the form of lists. The lock is held.
func Line(st *State, name string) *nusav1.Job {
	e, ok := st.History.Get(name)
	if !ok {
		return nil
	}
	out := &nusav1.Job{}
	_ = proto.Unmarshal(e.Line, out) // cannot fail: the line was decoded, or made here
	markHistory(out)
	return out
}

// Stored returns the record of a job as the transaction leaves it, like Tx.Job. It also finds a job
// in the history.
func Stored(t *Tx, k JobKey) (*Record, int64, error) {
	if t.State.History.Unread() && !t.State.History.Certain(k.String()) {
		return nil, 0, ErrRecall
	}
	if _, changed := t.findOf(jobPrefix, k); !changed && InHistory(t.State, k) {
		r := recalledOf(t.State, k)
		if r == nil {
			return nil, 0, ErrRecall
		}
		return r.record, r.job.GetRevision(), nil
	}
	if ch, changed := t.findOf(historyPrefix, k); changed && ch.puts() {
		return nil, 0, errTxFull // the job leaves memory with this transaction: the next one recalls the job
	}
	rec, rev := t.Job(k)
	return rec, rev, nil
}

// pastEnd returns how a batch job in the history ended. It returns false if the job is not in the
// history.
func pastEnd(t *Tx, k JobKey) (nusav1.JobState, bool) {
	_, changed := t.findOf(jobPrefix, k)
	if changed || !InHistory(t.State, k) {
		return 0, false
	}
	r := recalledOf(t.State, k)
	if r == nil || !jobstatus.HasEnded(r.job.GetStatus().GetState()) {
		return nusav1.JobState_JOB_STATE_UNSPECIFIED, true
	}
	return r.job.GetStatus().GetState(), true
}

// leaveHistory removes the record of a job from the history, if there is one.
func leaveHistory(t *Tx, k JobKey) error {
	e, ok := t.State.History.Get(k.String())
	if !ok {
		return nil
	}
	return t.set(txChange{key: k.historyKey(), known: e.Revision})
}

// Forget removes jobs from the history.
func Forget(t *Tx, names []string) error {
	for _, name := range names {
		k := keyOfName(name)
		if err := leaveHistory(t, k); err != nil {
			return err
		}
		if line := Line(t.State, name); line.GetVersion() > 1 {
			if err := t.forgetVersions(k); err != nil {
				return err
			}
		}
	}
	return nil
}

// ended returns the status of a job that has no running instance any more, if the status shows
// nothing that only memory has. Otherwise it returns nil. The lock is held.
func ended(j *Job, see Sight) *nusav1.JobStatus {
	switch {
	case j.Record == nil || j.Record.Purge():
		return nil
	case j.Record.Stopped():
		if status := j.Status(see); j.Slots.Len() == 0 && status.GetState() == nusav1.JobState_JOB_STATE_STOPPED {
			return status
		}
		return nil
	case j.Record.Type() != place.Batch || !j.standsIn(j.Result) || !jobstatus.HasEnded(j.Result.GetStatus().GetState()):
		return nil
	}
	left := 0
	for _, g := range j.Place().Groups {
		left += g.Count
	}
	for s := range j.Slots.All() {
		if s.State != region.Done || s.Desired != region.DesiredRun || s.Vacant || len(s.Former) > 0 || s.ReturnTo != "" {
			return nil
		}
		if s.OfRun(j.Record.Run(j.Revision)) && !j.Record.obsolete(s.JobVersion, s.Group) {
			left -= s.Count()
		}
	}
	if left > 0 {
		return nil
	}
	return proto.CloneOf(j.Result.GetStatus())
}

// mayLeave notes a job that may have ended, so that Leaving checks it later. The lock is held.
func mayLeave(st *State, j *Job) {
	switch {
	case j.Record == nil, j.Record.Stopped() && j.Slots.Len() > 0:
		return
	case !j.Record.Stopped() && !(j.standsIn(j.Result) && jobstatus.HasEnded(j.Result.GetStatus().GetState())):
		return
	}
	if n := len(st.leaving); n == 0 || st.leaving[n-1].key != j.Key || st.leaving[n-1].changes != j.Changes {
		st.leaving = append(st.leaving, leaving{j.Key, j.Changes, st.Clock()})
	}
}

// maxDeparting bounds the writes of one transaction that moves jobs to the history.
const maxDeparting = 100

// otherDeparting is how many records of a job move, beside its slots.
const otherDeparting = 5

// Leaving returns jobs that one transaction can move to the history. These are the jobs that ended
// at least `after` ago, and the oldest ones if there are more than most. It returns each job only
// once: see LeaveLater. A job may have more slots than fit into a transaction: see ForgetLeftover.
// The lock is held.
func Leaving(st *State, after time.Duration, most int) (keys []JobKey) {
	if st.GlobalLevel < historyLevel || st.Leadership.GetConflict() != nil || st.History.Unread() {
		st.leaving = slices.DeleteFunc(st.leaving, func(l leaving) bool {
			j := st.Jobs[l.key]
			return j == nil || j.Changes != l.changes
		})
		return nil
	}
	see, now, i, size := st.Sight(), st.Clock(), 0, 0
	for ; i < len(st.leaving); i++ {
		l := st.leaving[i]
		if now-l.since < after && len(st.leaving)-i <= most {
			break
		}
		j := st.Jobs[l.key]
		if j == nil || j.Changes != l.changes || ended(j, see) == nil {
			continue
		}
		each := min(maxDeparting, otherDeparting+j.Slots.Len())
		if size+each > maxDeparting && size > 0 {
			break
		}
		keys, size = append(keys, l.key), size+each
	}
	st.leaving = st.leaving[i:]
	if len(st.leaving) == 0 {
		st.leaving = nil
	}
	return keys
}

// LeaveLater makes Leaving return jobs again that could not move to the history. The lock is held.
func LeaveLater(st *State, keys []JobKey) {
	for _, k := range keys {
		if j := st.Jobs[k]; j != nil {
			mayLeave(st, j)
		}
	}
}

// Leftover returns a job in the history that still has slots. The lock is held.
func Leftover(st *State) (k JobKey, some bool) {
	for k := range st.leftover {
		j := st.Jobs[k]
		if j != nil && j.Record == nil && j.Slots.Len() > 0 && InHistory(st, k) {
			return k, true
		}
		delete(st.leftover, k) // the job has returned, with these slots
	}
	return JobKey{}, false
}

// ForgetLeftover removes slots of a job that is in the history: as many as fit into a transaction.
func ForgetLeftover(t *Tx, k JobKey) error {
	j := t.State.Jobs[k]
	if _, changed := t.findOf(jobPrefix, k); changed || j == nil || j.Record != nil || t.slots[k] > 0 {
		return nil
	}
	return t.ChangeSlots(deletions(j, maxDeparting))
}

// deletions returns the changes that delete the first slots of a job.
func deletions(j *Job, most int) (out []region.Change) {
	for s := range j.Slots.All() {
		if len(out) == most {
			break
		}
		out = append(out, region.Change{Delete: true, Slot: s})
	}
	return out
}

// Depart moves a job to the history. It does nothing while the history is still being read, if the
// job has not ended, or if the transaction already changes the job. If the job has more slots than fit into a transaction, the
// rest follows: see ForgetLeftover. Nothing runs in these slots, and no plan changes them, because
// the job has no record outside the history.
func Depart(t *Tx, k JobKey, now time.Time) error {
	st := t.State
	j := st.Jobs[k]
	if j == nil || st.History.Unread() {
		return nil
	}
	if _, changed := t.findOf(jobPrefix, k); changed || t.slots[k] > 0 {
		return nil
	}
	status := ended(j, st.Sight())
	if status == nil {
		return nil
	}
	full := j.Record.Full()
	full.Job.Run = j.Record.Run(j.Revision)
	out := full.GetJob()
	body := &nusav1.HistoryBody{Job: full, Result: &nusav1.ResultRecord{Version: out.GetVersion(), Run: out.GetRun(), Status: status}}
	rec := &nusav1.HistoryRecord{Ended: timestamppb.New(now)}
	var err error
	if rec.Body, err = pack(body); err != nil {
		return err
	}
	if rec.Line, err = proto.Marshal(lineOf(out, status, j.Revision)); err != nil {
		return fmt.Errorf("encode the line of %s: %w", k, err)
	}
	if err := t.set(txChange{key: k.recordKey(), known: j.Revision}); err != nil {
		return err
	}
	if err := t.ChangeSlots(deletions(j, maxDeparting-otherDeparting)); err != nil {
		return err
	}
	if j.Result != nil {
		if err := t.deleteUnchecked(k.resultKey()); err != nil {
			return err
		}
	}
	if j.Healthy != nil {
		if err := t.DeleteHealthy(k); err != nil {
			return err
		}
	}
	if j.StoredRollout != nil {
		if err := t.deleteUnchecked(k.rolloutKey()); err != nil {
			return err
		}
	}
	if err := forgetAttempts(t, k); err != nil {
		return err
	}
	was, _ := st.History.Get(k.String()) // see inHistory
	return t.set(txChange{key: k.historyKey(), msg: rec, known: was.Revision})
}

// lineOf returns a job in the form of lists, without the fields that few lists show.
func lineOf(j *nusav1.Job, status *nusav1.JobStatus, revision int64) *nusav1.Job {
	out := &nusav1.Job{
		Spec:    &nusav1.JobSpec{Namespace: j.GetSpec().GetNamespace(), Name: j.GetSpec().GetName(), Type: j.GetSpec().GetType(), Labels: j.GetSpec().GetLabels()},
		Version: j.GetVersion(), Revision: revision, Stopped: j.GetStopped(), Submitted: j.GetSubmitted(), Run: j.GetRun(),
		Status: &nusav1.JobStatus{State: status.GetState(), Message: strings.ToValidUTF8(status.GetMessage()[:min(len(status.GetMessage()), historyMessage)], ""), Groups: map[string]*nusav1.GroupStatus{}},
	}
	for name, g := range status.GetGroups() {
		out.Status.Groups[name] = &nusav1.GroupStatus{Desired: g.GetDesired(), Counts: g.GetCounts()}
	}
	return out
}

// compressors are reused: a new one takes a megabyte.
var compressors = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(io.Discard, flate.BestSpeed) // cannot fail: the level is valid
	return w
}}

// pack encodes and compresses the body of a record of the history.
func pack(body *nusav1.HistoryBody) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode a job for the history: %w", err)
	}
	var out bytes.Buffer
	w, _ := compressors.Get().(*flate.Writer)
	defer compressors.Put(w)
	w.Reset(&out)
	if _, err := w.Write(b); err != nil {
		return nil, fmt.Errorf("compress a job for the history: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress a job for the history: %w", err)
	}
	return out.Bytes(), nil
}

// decodeHistory decodes the stored record of a job in the history.
func decodeHistory(k JobKey, kv store.KV) (*recalled, error) {
	rec, body := &nusav1.HistoryRecord{}, &nusav1.HistoryBody{}
	if err := Decode(kv, rec); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(flate.NewReader(bytes.NewReader(rec.GetBody())))
	if err == nil {
		err = proto.Unmarshal(b, body)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", kv.Key, ErrFormat, err)
	}
	line := &nusav1.Job{}
	if err := proto.Unmarshal(rec.GetLine(), line); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", kv.Key, ErrFormat, err)
	}
	full := body.GetJob().GetJob()
	out := &recalled{key: k, revision: kv.ModRevision, job: &nusav1.Job{
		Version: full.GetVersion(), Revision: line.GetRevision(), Stopped: full.GetStopped(), Submitted: full.GetSubmitted(),
		Status: body.GetResult().GetStatus(), Run: full.GetRun(), Reverted: full.GetReverted(),
	}}
	if out.record, err = NewRecord(body.GetJob()); err != nil {
		return nil, fmt.Errorf("%s: %w", kv.Key, err)
	}
	return out, nil
}

// The fields of nusav1.HistoryRecord that entryOf reads.
const (
	historyLine  protowire.Number = 1
	historyEnded protowire.Number = 2
)

// entryOf returns the entry of a stored record of the history. It does not decode the body, because
// a million records may be loaded.
func entryOf(kv store.KV) (history.Entry, error) {
	bad := fmt.Errorf("%s: %w", kv.Key, ErrFormat)
	if len(kv.Value) == 0 || kv.Value[0] != formatProto {
		return history.Entry{}, bad
	}
	out := history.Entry{Revision: kv.ModRevision, Size: int64(len(kv.Key) + len(kv.Value))}
	for b := kv.Value[1:]; len(b) > 0; {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return history.Entry{}, bad
		}
		b = b[n:]
		size := protowire.ConsumeFieldValue(field, kind, b)
		if size < 0 {
			return history.Entry{}, bad
		}
		if kind == protowire.BytesType {
			switch v, _ := protowire.ConsumeBytes(b); field {
			case historyLine:
				out.Line = slices.Clone(v)
			case historyEnded:
				at := &timestamppb.Timestamp{}
				if err := proto.Unmarshal(v, at); err != nil {
					return history.Entry{}, bad
				}
				out.Ended = at.GetSeconds()
			}
		}
		b = b[size:]
	}
	return out, nil
}

// entryOfMessage returns the entry of a record that this server has written. A nil rec means that
// the record was removed, and gives the zero entry.
func entryOfMessage(key string, rec *nusav1.HistoryRecord, revision int64) history.Entry {
	if rec == nil {
		return history.Entry{}
	}
	return history.Entry{Line: rec.GetLine(), Revision: revision, Ended: rec.GetEnded().GetSeconds(), Size: int64(len(key) + 1 + proto.Size(rec))}
}

// applyHistory sets the entry of a job in the history. The zero entry removes it. The lock is held.
func applyHistory(st *State, name string, e history.Entry) {
	var was history.Entry
	var had bool
	k, has := keyOfName(name), e.Revision != 0
	if has {
		was, had = st.History.Put(name, e)
		st.Names.Add(name)
		if j := st.Jobs[k]; j != nil && j.Record == nil {
			st.leftover[k] = struct{}{}
		}
	} else {
		was, had = st.History.Delete(name)
		st.Names.Removed()
	}
	weigh := func(e history.Entry, is bool) int64 {
		if !is {
			return 0
		}
		return e.Size + historyOverhead
	}
	st.Room.Count(had, has)
	st.Room.Weigh(k.Namespace, weigh(was, had), weigh(e, has))
	pastChanged(st, name)
	noteChanged(st, k)
	st.Notify()
}
