package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/auditwire"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// List implements nusav1.AuditServer.
func (a *auditAPI) List(ctx context.Context, req *nusav1.ListAuditRequest) (*nusav1.ListAuditResponse, error) {
	term, err := a.s.term()
	if err != nil {
		return nil, err
	}
	region := req.GetRegion()
	if region != "" && !req.GetStored() {
		client, err := term.AuditOf(region)
		if err != nil {
			return nil, err
		}
		req.Region = ""
		return client.List(ctx, req)
	}
	if region == "" && (req.GetOwn() || req.GetSeq() > 0) {
		f, err := auditwire.FilterOf(req)
		if err != nil {
			return nil, err
		}
		page, err := latest(ctx, term.Store, f, time.Now())
		return page, rpcError(err)
	}
	page, err := latestOfAll(ctx, term.Store, req, time.Now())
	return page, rpcError(err)
}

// auditWindow is the number of leading digits of a key's time. Keys with the same leading digits
// were written within 2.8 hours, and are read together.
const auditWindow, auditWindowTime = 7, 10_000 * time.Second

// latest returns the latest chosen entries of the own trail, the latest first. The store lists in
// ascending order, so it is read window by window, back from the latest.
func latest(ctx context.Context, s store.Store, f auditwire.Filter, now time.Time) (*nusav1.ListAuditResponse, error) {
	end := now
	for _, bound := range []int64{f.Until, f.At} {
		if bound > 0 {
			end = time.Unix(0, min(bound, end.UnixNano()))
		}
	}
	end = end.Add(auditWindowTime) // the key of a record has a later time than its entries
	start, err := oldest(ctx, s, end, [2]string{state.AuditPrefix, state.AuditEnd})
	if err != nil {
		return nil, err
	}
	if f.Since > start.UnixNano() {
		start = time.Unix(0, f.Since)
	}
	var out []*nusav1.AuditEntry
	for at := end; len(out) <= f.Limit; at = at.Add(-auditWindowTime) {
		prefix := state.AuditKey(at)[:len(state.AuditPrefix)+auditWindow]
		some, err := window(ctx, s, prefix, f, f.Limit+1-len(out))
		if err != nil {
			return nil, err
		}
		slices.Reverse(some)
		out = append(out, some...)
		if prefix <= state.AuditKey(start)[:len(prefix)] {
			break
		}
	}
	return f.Page(out), nil
}

// oldest returns the time of the oldest record of some trails, or the end if there is none before it.
// Each trail is a prefix of keys and their end.
func oldest(ctx context.Context, s store.Store, end time.Time, trails ...[2]string) (time.Time, error) {
	for _, keys := range trails {
		_, err := s.Range(ctx, keys[0], keys[1], func(kv store.KV) error {
			at, err := timeOf(kv.Key, keys[0])
			if err == nil && at < end.UnixNano() {
				end = time.Unix(0, at)
			}
			return errors.Join(err, errUntil)
		})
		if err != nil && !errors.Is(err, errUntil) || errors.Is(err, state.ErrFormat) {
			return end, err
		}
	}
	return end, nil
}

// timeOf returns the time in the key of a record with a prefix.
func timeOf(key, prefix string) (int64, error) {
	digits, _, _ := strings.Cut(key[len(prefix):], "-")
	at, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", key, state.ErrFormat)
	}
	return at, nil
}

// errUntil ends the list of a window.
var errUntil = errors.New("later")

// window returns the latest chosen entries under a prefix, the latest last.
func window(ctx context.Context, s store.Store, prefix string, f auditwire.Filter, most int) (out []*nusav1.AuditEntry, err error) {
	_, err = s.List(ctx, prefix, func(kv store.KV) error {
		entries, _, err := unpack(kv)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if f.Shows(e) {
				out = append(out, e)
			}
		}
		if len(out) > 2*most {
			out = append(out[:0], out[len(out)-most:]...)
		}
		if len(entries) > 0 && f.Before > 0 && entries[0].GetSeq() >= f.Before {
			return errUntil
		}
		return nil
	})
	if errors.Is(err, errUntil) {
		err = nil
	}
	return out[max(0, len(out)-most):], err
}

// ownSource is the source of the entries of the global tier. regionSource is the beginning of the
// sources of regions.
const ownSource, regionSource = "global", "region/"

// storedAt is the place of an entry among all entries that the global tier has stored: they are in the
// order of the times at which the global tier stored them.
type storedAt struct {
	at     int64 // the time in the key of the record
	source string
	seq    int64
}

func (a storedAt) compare(b storedAt) int {
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.source, b.source), cmp.Compare(a.seq, b.seq))
}

// String returns the place as the name of a page.
func (a storedAt) String() string { return fmt.Sprintf("%d-%d-%s", a.at, a.seq, a.source) }

// parseStoredAt reads the name of a page.
func parseStoredAt(page string) (out storedAt, err error) {
	parts := strings.SplitN(page, "-", 3)
	if len(parts) < 3 {
		return out, rpcerr.NoPage("page", page)
	}
	at, errAt := strconv.ParseInt(parts[0], 10, 64)
	seq, errSeq := strconv.ParseInt(parts[1], 10, 64)
	if errAt != nil || errSeq != nil || at < 1 {
		return out, rpcerr.NoPage("page", page)
	}
	return storedAt{at, parts[2], seq}, nil
}

// storedEntry is an entry with its place.
type storedEntry struct {
	storedAt
	entry *nusav1.AuditEntry
}

// storedList reads the entries of the global tier and those that regions have forwarded.
type storedList struct {
	filter auditwire.Filter
	// region is the only region whose entries are shown; empty: all, and those of the global tier.
	region string
	// before is the last place of the previous page. It is zero for the first page.
	before storedAt
}

// latestOfAll returns the entries that were stored last, the last first, also those of regions.
func latestOfAll(ctx context.Context, s store.Store, req *nusav1.ListAuditRequest, now time.Time) (*nusav1.ListAuditResponse, error) {
	l, end := storedList{region: req.GetRegion()}, now.Add(auditWindowTime)
	var err error
	if req.GetPage() != "" {
		if l.before, err = parseStoredAt(req.GetPage()); err != nil {
			return nil, err
		}
		req.Page, end = "", time.Unix(0, min(l.before.at, end.UnixNano()))
	}
	if l.filter, err = auditwire.FilterOf(req); err != nil {
		return nil, err
	}
	trails := [][2]string{{state.AuditPrefix, state.AuditEnd}, {state.ForwardedPrefix, state.ForwardedEnd}}
	if l.region != "" {
		trails = trails[1:]
	}
	start, err := oldest(ctx, s, end, trails...)
	if err != nil {
		return nil, err
	}
	if since := l.filter.Since - int64(time.Hour); since > start.UnixNano() { // the clock of a region may be fast
		start = time.Unix(0, since)
	}
	var out []storedEntry
	for at := end; len(out) <= l.filter.Limit; at = at.Add(-auditWindowTime) {
		window := fmt.Sprintf("%020d", at.UnixNano())[:auditWindow]
		some, err := l.window(ctx, s, window)
		if err != nil {
			return nil, err
		}
		out = append(out, some...)
		if window <= fmt.Sprintf("%020d", start.UnixNano())[:auditWindow] {
			break
		}
	}
	page := &nusav1.ListAuditResponse{}
	for i, x := range out[:min(len(out), l.filter.Limit)] {
		page.Entries = append(page.Entries, x.entry)
		if i == l.filter.Limit-1 && len(out) > l.filter.Limit {
			page.NextPage = x.String()
		}
	}
	return page, nil
}

// window returns the entries of one window, the last first, at most one more than a page has.
func (l *storedList) window(ctx context.Context, s store.Store, digits string) (out []storedEntry, err error) {
	prefixes := []string{state.AuditPrefix, state.ForwardedPrefix}
	if l.region != "" {
		prefixes = prefixes[1:]
	}
	for _, prefix := range prefixes {
		var some []storedEntry
		_, err := s.List(ctx, prefix+digits, func(kv store.KV) error {
			some, err = l.add(some, kv, prefix)
			return err
		})
		if err != nil {
			return nil, err
		}
		out = append(out, some...)
	}
	slices.SortFunc(out, func(a, b storedEntry) int { return b.compare(a.storedAt) })
	return out[:min(len(out), l.filter.Limit+1)], nil
}

// add adds the chosen entries of a record to those of earlier records, and drops the first ones if
// there are too many.
func (l *storedList) add(some []storedEntry, kv store.KV, prefix string) ([]storedEntry, error) {
	entries, rec, err := unpack(kv)
	if err != nil || l.region != "" && rec.GetRegion() != l.region {
		return some, err
	}
	at, err := timeOf(kv.Key, prefix)
	if err != nil {
		return nil, err
	}
	source := ownSource
	if rec.GetRegion() != "" {
		source = regionSource + rec.GetRegion()
	}
	for _, e := range entries {
		x := storedEntry{storedAt{at, source, e.GetSeq()}, e}
		if !l.filter.Shows(e) || l.before.at > 0 && x.compare(l.before) >= 0 {
			continue
		}
		e.Source = source
		some = append(some, x)
	}
	if most := l.filter.Limit + 1; len(some) > 2*most {
		some = append(some[:0], some[len(some)-most:]...)
	}
	return some, nil
}
