package gather

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/room"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/auditwire"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

const (
	// interval is how often Gather looks which regions have new entries.
	interval = time.Second
	// atOnce bounds the regions that are asked at the same time, and partsAtOnce the parts of one
	// region in one turn.
	atOnce, partsAtOnce = 4, 32
	// callTimeout bounds one call of a region.
	callTimeout = 10 * time.Second
	// failPause is the pause after a failure, until a region is asked again.
	failPause = 10 * time.Second
	// A region may cause one note in the trail of the global tier each notePause, and noteBurst at once.
	notePause, noteBurst = time.Minute, 8
)

// Config has what a Gather needs of its leadership term.
type Config struct {
	State  *state.State
	Commit *state.Committer
	Store  store.Store
	// Client returns the audit service of a region.
	Client func(region string) (nusav1.AuditClient, error)
	// Most returns how many bytes the records may take. Age is how long they are kept.
	Most func() int64
	Age  time.Duration
	// Lost gets the number of entries that a region removed before they were forwarded. Stored gets the
	// number of entries that were stored.
	Lost, Stored func(entries int64)
	// Audited is called with the entries that were stored. It must not wait.
	Audited func(trail string, entries []audit.Entry)
	Log     *slog.Logger
}

// Gather stores the trails of the regions during one leadership term.
type Gather struct {
	Config
	mu      sync.Mutex
	regions map[string]*region
	shares  room.Shares
	last    int64 // the greatest number of a record
}

// region is what Gather knows about a region.
type region struct {
	name   string
	cursor Cursor
	// again is when a region that failed is asked again. failed is why it failed.
	again  time.Time
	failed string
	// notes is when the notes that the region has caused are paid for: see mayNote.
	notes time.Time
}

// mayNote reports whether a region may cause one more note. Otherwise a region could fill the trail
// of the global tier, and so push out the other entries.
func (r *region) mayNote(now time.Time) bool {
	if r.notes.Before(now) {
		r.notes = now
	}
	if r.notes.Sub(now) > (noteBurst-1)*notePause {
		return false
	}
	r.notes = r.notes.Add(notePause)
	return true
}

// New returns a Gather.
func New(cfg Config) *Gather { return &Gather{Config: cfg, regions: map[string]*region{}} }

// Load reads what is stored of the regions' trails.
func (g *Gather) Load(ctx context.Context) error {
	regions, shares := map[string]*region{}, room.Shares{}
	_, err := g.Store.List(ctx, state.CursorPrefix, func(kv store.KV) error {
		rec := new(nusav1.AuditCursor)
		if err := state.Decode(kv, rec); err != nil {
			return err
		}
		name := kv.Key[len(state.CursorPrefix):]
		c, err := fromRecord(rec)
		regions[name] = &region{name: name, cursor: c}
		return err
	})
	if err != nil {
		return err
	}
	_, err = g.Store.List(ctx, state.ForwardedPrefix, func(kv store.KV) error {
		rec := new(nusav1.AuditRecord)
		if err := state.Decode(kv, rec); err != nil {
			return err
		}
		number, err := state.ForwardedNumber(kv.Key)
		shares.Add(rec.GetRegion(), number, int64(len(kv.Key)+len(kv.Value)))
		return err
	})
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.regions, g.shares, g.last = regions, shares, shares.Last()
	return nil
}

// Run stores the entries of the regions until ctx ends. Load must have succeeded.
func (g *Gather) Run(ctx context.Context) error {
	var aged time.Time
	for range wait.Ticks(ctx, interval) {
		g.round(ctx)
		if now := time.Now(); now.Sub(aged) >= ageEvery {
			aged = now
			g.forgetOld(ctx, now)
		}
		g.forgetExcess(ctx)
	}
	return ctx.Err()
}

// round asks the regions that have entries which are not stored.
func (g *Gather) round(ctx context.Context) {
	var asks errgroup.Group
	asks.SetLimit(atOnce)
	for _, r := range g.due(time.Now()) {
		asks.Go(func() error {
			g.ask(ctx, r)
			return nil
		})
	}
	_ = asks.Wait() // the functions return no error
}

// due returns the connected regions that have reported entries which are not stored.
func (g *Gather) due(now time.Time) (out []*region) {
	g.State.Lock()
	defer g.State.Unlock()
	if !g.State.Serving() {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, r := range g.State.Regions {
		n := r.Report.GetAuditEntries()
		if r.Session == nil || n == 0 || r.ReportStale {
			continue
		}
		x := g.regions[name]
		if x == nil {
			x = &region{name: name}
			g.regions[name] = x
		}
		if x.cursor.Tree.Size != n && !now.Before(x.again) {
			out = append(out, x)
		}
	}
	return out
}

// ask stores the next entries of a region.
func (g *Gather) ask(ctx context.Context, r *region) {
	client, err := g.Client(r.name)
	for n := 0; err == nil && n < partsAtOnce; n++ {
		var more bool
		more, err = g.next(ctx, client, r)
		if !more {
			break
		}
	}
	switch {
	case err == nil:
		r.failed = ""
	case ctx.Err() == nil:
		r.again = time.Now().Add(failPause)
		if why := status.Convert(err).Message(); why != r.failed {
			r.failed = why
			g.Log.Warn("the audit trail of a region is not stored", "region", r.name, "again_in", failPause, "error", why)
		}
	}
}

// next stores one part of a region's trail, and reports whether there is more.
func (g *Gather) next(ctx context.Context, client nusav1.AuditClient, r *region) (more bool, err error) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := client.Forward(call, &nusav1.ForwardAuditRequest{Trail: r.cursor.Trail, Stored: auditwire.FromTree(r.cursor.Tree)})
	if err != nil {
		return false, err
	}
	taken, err := Take(r.cursor, r.name, resp)
	if err != nil {
		return false, err
	}
	if len(taken.Entries) == 0 && taken.Note == "" && taken.Cursor.Trail == r.cursor.Trail {
		return false, nil
	}
	if taken.Note != "" && !r.mayNote(time.Now()) {
		return false, fmt.Errorf("region %s: entries are missing too often: %s", r.name, taken.Note)
	}
	if err := g.store(ctx, r.name, taken); err != nil {
		return false, err
	}
	if lost := taken.Cursor.Lost - r.cursor.Lost; lost > 0 {
		g.Lost(lost)
	}
	g.Stored(int64(len(taken.Entries)))
	r.cursor = taken.Cursor
	return resp.GetMore(), nil
}

// store stores a part of a region's trail.
func (g *Gather) store(ctx context.Context, name string, taken Taken) error {
	f := state.Forwarded{Region: name, Entries: taken.Entries, Before: taken.Before, Cursor: taken.Cursor.record()}
	if taken.Note != "" {
		f.Note = &audit.Entry{Verb: "forward", Kind: "audit", Name: name, Region: name, Reason: taken.Note}
		g.Log.Warn("the audit trail of a region is not complete", "region", name, "why", taken.Note)
	}
	g.mu.Lock()
	g.last = max(g.last+1, time.Now().UnixNano())
	f.Number = g.last
	g.mu.Unlock()
	bytes := int64(0)
	_, err := g.Commit.Do(ctx, func(tx *state.Tx) (err error) {
		if taken.Note != "" {
			tx.Event("audit.gap", name, "%s", taken.Note)
		}
		bytes, err = state.PutForwarded(tx, f)
		return err
	})
	if err != nil {
		return err
	}
	g.Audited(taken.Cursor.Trail, taken.Entries)
	if bytes > 0 {
		g.mu.Lock()
		g.shares.Add(name, f.Number, bytes)
		g.mu.Unlock()
	}
	return nil
}
