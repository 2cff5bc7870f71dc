package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// diskQuotas is how many quotas of bytes the database may take on disk. Large values leave
	// about as much free space between them as they take. To return that space to the disk, the
	// store would have to stop for long.
	diskQuotas = 3
	// reclaimTimeout bounds one compaction or defragmentation.
	reclaimTimeout = 10 * time.Minute
	// defaultDisk is the bound of the bytes on disk of an etcd for which no quota was set.
	defaultDisk = 2 << 30
)

// Usage is how full a store is.
type Usage struct {
	// Bytes is the size of the database on disk. InUse is how many of these bytes are in use.
	// History that is not compacted is in use.
	Bytes, InUse int64
	// Quota bounds the bytes in use; 0: not known.
	Quota int64
	// NoSpace: the store refuses all writes that need space.
	NoSpace bool
}

// Bounded is a store of limited size, with the ways to make space in it.
type Bounded interface {
	// Usage returns how full the store is.
	Usage(ctx context.Context) (Usage, error)
	// Compact drops the history, except what a running list still reads.
	Compact(ctx context.Context) error
	// Defragment returns free space of the database to the disk. Meanwhile the store neither reads
	// nor writes.
	Defragment(ctx context.Context) error
	// Resume makes the store accept writes again after Usage.NoSpace.
	Resume(ctx context.Context) error
	// Missing returns the members that do not respond, one line each. running are the names of
	// the global servers that run: each runs the embedded member of its name.
	Missing(ctx context.Context, running []string) ([]string, error)
	// Embedded reports whether the database belongs to this process.
	Embedded() bool
	// Turn returns how many members come before the member of this process, in the order of their
	// ids, and the number of all members. It returns 0 and 1 for a store that is not embedded.
	Turn() (before, members int)
}

// hardQuota returns the bound of the bytes that the member's database may take on disk. It is more
// than the quota, so that other writes have space while submits are refused. It is also more than
// the present size, because the store may have been filled under a greater quota.
func hardQuota(dir string, quota int64) int64 {
	size := diskQuotas * quota
	if info, err := os.Stat(filepath.Join(dir, "member", "snap", "db")); err == nil {
		size = max(size, info.Size()+quota)
	}
	return size
}

// Embedded implements Bounded.
func (e *Etcd) Embedded() bool { return e.member != nil }

// Turn implements Bounded.
func (e *Etcd) Turn() (before, members int) {
	if e.member == nil {
		return 0, 1
	}
	all := e.member.Server.Cluster().Members()
	for _, m := range all {
		if m.ID < e.member.Server.MemberID() {
			before++
		}
	}
	return before, len(all)
}

// endpoints returns the members to ask. "" is the member of this process.
func (e *Etcd) endpoints() []string {
	if e.member != nil {
		return []string{""}
	}
	return e.client.Endpoints()
}

// Usage implements Bounded. It returns the greatest values of all members. The quota of an etcd
// outside this process is in bytes on disk, and only a part of these may be in use.
func (e *Etcd) Usage(ctx context.Context) (Usage, error) {
	out := Usage{Quota: e.quota}
	disk := int64(math.MaxInt64)
	ctx, cancel := e.op(ctx)
	defer cancel()
	var failed error
	answered := false
	for _, endpoint := range e.endpoints() {
		s, err := e.client.Status(ctx, endpoint)
		if err != nil {
			failed = err
			continue
		}
		answered = true
		out.Bytes, out.InUse = max(out.Bytes, s.DbSize), max(out.InUse, s.DbSizeInUse)
		disk = min(disk, cmp.Or(s.DbSizeQuota, defaultDisk))
		for _, text := range s.Errors {
			out.NoSpace = out.NoSpace || strings.Contains(text, "NOSPACE")
		}
	}
	if !answered {
		return Usage{}, fmt.Errorf("measure how full the store is: %w", e.typed(failed))
	}
	if e.member == nil {
		out.Quota = max(0, disk/diskQuotas)
	}
	return out, nil
}

// Missing implements Bounded. The other embedded members need not have an address for clients, but
// a server whose member is cut off or stands still cannot remain a candidate.
func (e *Etcd) Missing(ctx context.Context, running []string) (out []string, err error) {
	if e.member != nil {
		all := e.member.Server.Cluster().Members()
		for _, m := range all {
			if !slices.Contains(running, m.Name) {
				out = append(out, fmt.Sprintf("the etcd member of global server %s does not run, 1 of %d: start that server again, or replace it", m.Name, len(all)))
			}
		}
		slices.Sort(out)
		return out, nil
	}
	for _, endpoint := range e.client.Endpoints() {
		one, cancel := context.WithTimeout(ctx, memberTimeout)
		_, err := e.client.Status(one, endpoint)
		cancel()
		if err != nil {
			out = append(out, fmt.Sprintf("etcd does not respond at %s, 1 of %d addresses", endpoint, len(e.client.Endpoints())))
		}
	}
	return out, nil
}

// Compact implements Bounded.
func (e *Etcd) Compact(ctx context.Context) error {
	opctx, cancel := e.op(ctx)
	resp, err := e.client.Get(opctx, raisedKey, clientv3.WithKeysOnly())
	cancel()
	if err != nil {
		return fmt.Errorf("compact the store: %w", e.typed(err))
	}
	err = e.CompactTo(ctx, e.compactable(resp.Header.Revision))
	if errors.Is(err, ErrCompacted) {
		return nil // a running list still reads the rest
	}
	return err
}

// CompactTo drops the history up to one of etcd's own revisions. It waits until the space of the
// history is free.
func (e *Etcd) CompactTo(ctx context.Context, revision int64) error {
	ctx, cancel := context.WithTimeout(ctx, reclaimTimeout)
	defer cancel()
	_, err := e.client.Compact(ctx, revision, clientv3.WithCompactPhysical())
	if err != nil {
		return fmt.Errorf("compact the store: %w", e.typed(err))
	}
	return nil
}

// Defragment implements Bounded.
func (e *Etcd) Defragment(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reclaimTimeout)
	defer cancel()
	if e.member != nil {
		if err := e.member.Server.Backend().Defrag(); err != nil {
			return fmt.Errorf("defragment the store: %w", err)
		}
		return nil
	}
	for _, endpoint := range e.client.Endpoints() {
		if _, err := e.client.Defragment(ctx, endpoint); err != nil {
			return fmt.Errorf("defragment the store: %w", e.typed(err))
		}
	}
	return nil
}

// Resume implements Bounded. It leaves alarms of other kinds, because an operator must see them.
func (e *Etcd) Resume(ctx context.Context) error {
	ctx, cancel := e.op(ctx)
	defer cancel()
	alarms, err := e.client.AlarmList(ctx)
	if err != nil {
		return fmt.Errorf("list the alarms of the store: %w", e.typed(err))
	}
	for _, a := range alarms.Alarms {
		if a.GetAlarm() != etcdserverpb.AlarmType_NOSPACE {
			continue
		}
		if _, err := e.client.AlarmDisarm(ctx, &clientv3.AlarmMember{MemberID: a.GetMemberID(), Alarm: a.GetAlarm()}); err != nil {
			return fmt.Errorf("let the store write again: %w", e.typed(err))
		}
	}
	return nil
}

// reading notes that a list reads a revision, page by page, until done is called. Meanwhile the
// revision is not compacted.
func (e *Etcd) reading(revision int64) (done func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reads[revision]++
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.reads[revision]--
		if e.reads[revision] == 0 {
			delete(e.reads, revision)
		}
	}
}

// beginning notes that a list begins, until done is called. The list's revision is not known yet.
// It cannot be before the latest compaction, because the list reads its first page after that
// compaction was decided.
func (e *Etcd) beginning() (done func()) {
	e.mu.Lock()
	compacted := e.compacted
	e.mu.Unlock()
	return e.reading(compacted)
}

// compactable returns the revision up to which the history may be dropped: the given one, or the
// earliest revision that a list still reads.
func (e *Etcd) compactable(revision int64) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	for r := range e.reads {
		revision = min(revision, r)
	}
	e.compacted = max(e.compacted, revision)
	return revision
}
