package deadletters

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/compact"
	"github.com/nusa-scheduler/nusa/global/deadletters/plan"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/versions"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// jobsMost bounds the jobs of one call, mostSpans what it says about each of them, and mostInstances its
	// response. callLimit is the time for it.
	jobsMost, mostSpans, mostInstances = 100, 4096, 256
	// mostRanges bounds the ranges of indices of a version of a job that have left dead letters: the record with
	// them is written again with each batch, and a call must be able to name them besides those not stored yet.
	// Further instances that fail leave no dead letter.
	mostRanges = 2048
	callLimit  = 5 * time.Second
	// After a call that failed, a region is not asked for retryFirst, and then for twice as long after each
	// further one, at most for retryMost.
	retryFirst, retryMost = 100 * time.Millisecond, 5 * time.Second
	// Bounds of what is stored of an instance.
	mostAttempts, mostMessage, mostName = 10, 512, 256
	// labelRedrive is a label of the job of a redrive: the id of the dead letter.
	labelRedrive = "nusa-redrive-of"
)

// retry is the back-off of a region whose calls fail.
type retry struct {
	pause time.Duration
	until time.Time
}

// askRegion asks a region for the failed instances of some jobs.
func (b *Book) askRegion(ctx context.Context, region string) {
	defer b.asked(region)
	defer b.cfg.WakePlacer()
	asked, req := b.request(region)
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	conn, err := b.cfg.Term.Dial(region)
	var resp *nusav1.CollectResponse
	if err == nil {
		resp, err = nusav1.NewDeadLettersClient(conn).Collect(call, req)
	}
	switch {
	case status.Code(err) == codes.Unimplemented: // the region is of an earlier version
		resp = &nusav1.CollectResponse{}
	case err != nil:
		b.cfg.Term.Log.Debug("a region did not return failed instances", "region", region, "jobs", len(asked), "error", err)
		b.st.Lock()
		defer b.st.Unlock()
		pause := min(max(2*b.retries[region].pause, retryFirst), retryMost)
		b.retries[region] = retry{pause, time.Now().Add(pause)}
		return
	}
	specs := b.specs(ctx, resp.GetInstances())
	b.st.Lock()
	defer b.st.Unlock()
	delete(b.retries, region)
	b.noteAll(region, asked, resp, specs)
}

// noteAll notes the response of a region. If the region has more, the loop asks again. It does
// not ask again about a job if the response had nothing new about it: the next response would be the same. The lock is held.
func (b *Book) noteAll(region string, asked map[state.JobKey]mark, resp *nusav1.CollectResponse, specs map[sourceKey][]byte) {
	fresh := map[state.JobKey]bool{}
	for _, l := range resp.GetInstances() {
		if _, of := asked[jobOf(l)]; of && checked(l, region) {
			fresh[jobOf(l)] = b.note(l, specs[sourceOf(l)]) || fresh[jobOf(l)]
		}
	}
	for k, m := range asked {
		isNew, named := fresh[k]
		if resp.GetMore() && (isNew || !named && len(fresh) > 0) {
			continue
		}
		b.seen[part{k, region}] = m
		if a := b.wanted[region][k]; a != nil && a.mark == m {
			delete(b.wanted[region], k)
		}
	}
}

// request returns the next call to a region.
func (b *Book) request(region string) (map[state.JobKey]mark, *nusav1.CollectRequest) {
	b.st.Lock()
	defer b.st.Unlock()
	asked, req := map[state.JobKey]mark{}, &nusav1.CollectRequest{}
	for k, a := range b.wanted[region] {
		if len(asked) == jobsMost {
			break
		}
		asked[k] = a.mark
		job := &nusav1.CollectJob{Namespace: k.Namespace, Name: k.Name}
		for _, s := range slices.SortedFunc(slices.Values(b.byJob[k]), sourceKey.compare) { // the latest are not cut off
			job.Collected = append(job.Collected, spansOf(s, b.sources[s].collected)...)
		}
		for _, l := range b.pending[k] {
			job.Collected = append(job.Collected, spansOf(sourceOf(l), []plan.Span{{Group: l.GetGroup(), From: l.GetIndex(), To: l.GetIndex() + 1}})...)
		}
		job.Collected = job.Collected[max(0, len(job.Collected)-mostSpans):]
		req.Jobs = append(req.Jobs, job)
	}
	return asked, req
}

func spansOf(s sourceKey, spans []plan.Span) (out []*nusav1.CollectedSpan) {
	for _, p := range spans {
		out = append(out, &nusav1.CollectedSpan{Group: p.Group, JobVersion: s.version, Run: s.run, From: p.From, To: p.To})
	}
	return out
}

// specs returns the packed specs of sources that are not stored yet.
func (b *Book) specs(ctx context.Context, all []*nusav1.DeadLetter) map[sourceKey][]byte {
	out := map[sourceKey][]byte{}
	for _, l := range all {
		k := sourceOf(l)
		if _, done := out[k]; !done {
			out[k] = b.specAt(ctx, k)
		}
	}
	return out
}

// specAt returns the packed spec of a version of a job, or nil.
func (b *Book) specAt(ctx context.Context, k sourceKey) []byte {
	b.st.Lock()
	j, known := b.st.Jobs[k.job], b.sources[k] != nil && b.sources[k].hasSpec
	var rec *state.Record
	if j != nil && j.Record.Version() == k.version {
		rec = j.Record
	}
	b.st.Unlock()
	switch {
	case known:
		return nil
	case rec != nil:
		raw, err := proto.Marshal(rec.Spec())
		if err != nil {
			return nil
		}
		packed, err := compact.Pack(raw)
		if err != nil || len(packed) > versions.MaxBytes {
			return nil
		}
		return packed
	}
	kv, ok, _, err := b.cfg.Term.Store.Get(ctx, state.VersionKey(k.job, k.version))
	stored := &nusav1.VersionRecord{}
	if err != nil || !ok || state.Decode(kv, stored) != nil {
		return nil
	}
	return stored.GetSpec()
}

// checked bounds what a region returned. It returns false for what no region may return.
func checked(l *nusav1.DeadLetter, region string) bool {
	if l.GetGroup() == "" || strings.ContainsRune(l.GetGroup(), '/') || len(l.GetGroup()) > mostName || l.GetIndex() < 0 || l.GetRun() < 0 || l.GetJobVersion() < 0 {
		return false
	}
	l.Attempts = l.Attempts[max(0, len(l.Attempts)-mostAttempts):]
	l.Message, l.Region = cut(l.GetMessage(), mostMessage), region
	for _, a := range l.GetAttempts() {
		a.Message, a.Node, a.Allocation, a.Region = cut(a.GetMessage(), mostName), cut(a.GetNode(), mostName), cut(a.GetAllocation(), mostName), region
		if a.Failure != nil {
			a.Failure.Task = cut(a.Failure.GetTask(), mostName)
		}
	}
	if l.Failure == nil {
		l.Failure = &nusav1.Failure{Category: nusav1.FailureCategory_FAILURE_CATEGORY_APP}
	}
	l.Failure.Task = cut(l.Failure.GetTask(), mostName)
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%d\x00%d\x00%s\x00%d", jobOf(l), l.GetRun(), l.GetJobVersion(), l.GetGroup(), l.GetIndex()))
	l.Id, l.State = hex.EncodeToString(sum[:8]), nusav1.DeadLetterState_DEAD_LETTER_STATE_OPEN
	l.Log, l.Spec, l.HasSpec, l.RedrivenAs, l.RedrivenBy, l.Redriven, l.RedriveOf = "", nil, false, "", "", nil, ""
	return true
}

func cut(s string, most int) string { return strings.ToValidUTF8(s[:min(len(s), most)], "") }

// note notes an instance that must be stored. spec is the packed spec, if it is not stored yet. It returns false
// if the instance is known, or if too many others of its job are. The lock is held.
func (b *Book) note(l *nusav1.DeadLetter, spec []byte) bool {
	k, s := jobOf(l), sourceOf(l)
	src := b.sources[s]
	if src != nil && plan.Has(src.collected, l.GetGroup(), l.GetIndex()) {
		return false
	}
	for _, p := range b.pending[k] {
		if p.GetId() == l.GetId() {
			return false
		}
	}
	if src != nil && len(src.collected) >= mostRanges {
		if !src.full {
			src.full = true
			b.cfg.Term.Log.Warn("further instances of a job that fail leave no dead letters: too many ranges of indices have", "job", k.String(), "most", mostRanges)
		}
		return false
	}
	if j := b.st.Jobs[k]; j != nil {
		l.RedriveOf = j.Record.Labels()[labelRedrive]
	}
	if spec != nil && (src == nil || !src.hasSpec) { // it may have been stored since it was read
		b.pendingSpecs[s] = spec
	}
	b.pending[k] = append(b.pending[k], l)
	b.pendingCount++
	if b.pendingSince.IsZero() {
		b.pendingSince = time.Now()
	}
	return true
}

// failureText describes a failure in a few words, for example "app, exit code 3".
func failureText(f *nusav1.Failure) string {
	word := strings.ToLower(strings.TrimPrefix(f.GetCategory().String(), "FAILURE_CATEGORY_"))
	switch {
	case f.GetSignal() != 0:
		return fmt.Sprintf("%s, signal %d", word, f.GetSignal())
	case f.GetExitCode() != 0:
		return fmt.Sprintf("%s, exit code %d", word, f.GetExitCode())
	}
	return cmp.Or(word, "app")
}
