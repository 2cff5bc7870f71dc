package hooks

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/global/hooks/delivery"
	"github.com/nusa-scheduler/nusa/global/objects"
	"github.com/nusa-scheduler/nusa/global/state"
	"github.com/nusa-scheduler/nusa/internal/wait"
	"github.com/nusa-scheduler/nusa/internal/webhook"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

const (
	// saveEvery is how often the progress of a webhook is stored, and lazySave how often it is stored
	// when only events that the webhook does not select were read.
	saveEvery, lazySave = time.Second, 30 * time.Second
	// saveAtOnce is the number of records that one request stores.
	saveAtOnce = 32
	// disableAgain is how long a failed write of a disabled webhook waits.
	disableAgain = time.Second
)

// Config has what a Sender needs of its leadership term.
type Config struct {
	State  *state.State
	Commit *state.Committer
	Source Source
	Policy *webhook.Policy
	// Metrics are those of the process.
	Metrics *Metrics
	Log     *slog.Logger
	// Now and Random may be set in tests.
	Now    func() time.Time
	Random func() float64
}

// Sender delivers events to all webhooks during one leadership term.
type Sender struct {
	Config
	// tests has an element for each test in progress.
	tests chan struct{}

	mu        sync.Mutex
	receivers map[string]*receiver // by name
}

// maxTests bounds the tests in progress.
const maxTests = 8

// New returns a Sender.
func New(cfg Config) *Sender {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Random == nil {
		cfg.Random = randomShare
	}
	return &Sender{Config: cfg, tests: make(chan struct{}, maxTests), receivers: map[string]*receiver{}}
}

// Run delivers until ctx ends. When it returns, no request is in progress.
func (s *Sender) Run(ctx context.Context) error {
	defer s.stop()
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	saved := s.Now()
	for {
		changed := s.State.Webhooks.Changed.C()
		s.follow(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-tick.C:
			lazy := s.Now().Sub(saved) >= lazySave
			if lazy {
				saved = s.Now()
			}
			s.save(ctx, lazy)
			s.alarm()
		}
	}
}

// follow makes the receivers those of the stored webhooks.
func (s *Sender) follow(ctx context.Context) {
	s.State.Lock()
	stored := maps.Clone(s.State.Webhooks.Stored)
	progress := maps.Clone(s.State.Webhooks.Progress)
	s.State.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, r := range s.receivers {
		if rec, ok := stored[name]; !ok || rec.GetId() != r.id {
			r.cancel()
			delete(s.receivers, name)
		}
	}
	for name, rec := range stored {
		r := s.receivers[name]
		switch {
		case r == nil:
			r = s.begin(ctx, rec.WebhookRecord, progress[name])
			s.receivers[name] = r
		case r.revision == rec.Revision:
			continue
		}
		h, err := newHook(rec.WebhookRecord)
		broken := ""
		if err != nil {
			h, broken = nil, "this server cannot use the stored webhook: "+err.Error()
		}
		r.revision = rec.Revision
		r.set(h, broken)
	}
}

// begin starts the receiver of a webhook.
func (s *Sender) begin(ctx context.Context, rec *nusav1.WebhookRecord, progress *nusav1.WebhookProgress) *receiver {
	ctx, cancel := context.WithCancel(ctx)
	r := &receiver{
		id: rec.GetId(), name: rec.GetWebhook().GetName(), source: s.Source, policy: s.Policy, metrics: s.Metrics, log: s.Log,
		disable: s.disable, now: s.Now, random: s.Random, cancel: cancel, ended: make(chan struct{}), wake: make(chan struct{}, 1),
		queue: delivery.New(savedOf(progress), defaultParallel, s.Now()), fresh: map[uint64]*nusav1.Event{},
		report: objects.Reporter(s.Now, s.State.Events.Add),
	}
	go r.run(ctx)
	return r
}

// stop ends all receivers, and waits for them.
func (s *Sender) stop() {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.receivers))
	s.mu.Unlock()
	for _, r := range all {
		r.cancel()
	}
	for _, r := range all {
		<-r.ended
	}
}

// of returns the receiver of a webhook, or nil.
func (s *Sender) of(name string) *receiver {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.receivers[name]
}

// save stores the progress that is not stored.
func (s *Sender) save(ctx context.Context, lazy bool) {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.receivers))
	s.mu.Unlock()
	type unsavedProgress struct {
		r   *receiver
		rec *nusav1.WebhookProgress
	}
	var due []unsavedProgress
	for _, r := range all {
		if rec := r.save(lazy); rec != nil {
			due = append(due, unsavedProgress{r, rec})
		}
	}
	for some := range slices.Chunk(due, saveAtOnce) {
		_, err := s.Commit.Do(ctx, func(t *state.Tx) error {
			for _, p := range some {
				if stored, _ := state.WebhookOf(t, p.r.name); stored.GetId() != p.r.id {
					continue // removed meanwhile
				}
				if err := state.PutProgress(t, p.r.name, p.rec); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil {
			continue
		}
		for _, p := range some {
			p.r.saveFailed()
		}
		if ctx.Err() == nil {
			s.Log.Warn("cannot store the progress of webhooks", "webhooks", len(some), "error", err)
		}
	}
}

// disable stores that the endpoint at a URL wants no more events. It tries until ctx ends.
func (s *Sender) disable(ctx context.Context, name, id, url, why string) {
	for {
		removed := false // the error of change is a status
		_, err := s.change(ctx, name, why, func(_ *state.Tx, old *nusav1.WebhookRecord, _ int64) (*nusav1.WebhookRecord, string, error) {
			removed = old.GetId() != id || old.GetWebhook().GetUrl() != url
			if removed {
				return nil, "", errRemoved
			}
			return withDisabled(old, why), "disable", nil
		})
		switch {
		case removed:
			return
		case err == nil:
			s.Log.Warn("a webhook was disabled", "webhook", name, "why", why)
			return
		}
		if !wait.For(ctx, disableAgain) {
			return
		}
	}
}

// errRemoved says that the webhook was removed meanwhile, or has another URL.
var errRemoved = errors.New("the webhook was removed")

// withDisabled returns a copy of a record that is disabled, or enabled if why is empty. It returns the
// same record if nothing changes.
func withDisabled(rec *nusav1.WebhookRecord, why string) *nusav1.WebhookRecord {
	if rec.GetWebhook().GetDisabled() == (why != "") {
		return rec
	}
	out := proto.CloneOf(rec)
	out.Webhook.Disabled, out.Webhook.DisabledReason = why != "", why
	return out
}

// alarm tells operators which webhooks are behind or have lost events.
func (s *Sender) alarm() {
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.receivers))
	s.mu.Unlock()
	var names []string
	for _, r := range all {
		if r.alarms() {
			names = append(names, r.name)
		}
	}
	text := objects.AlarmText("events wait too long for webhooks, or were removed before they were sent", names, "nusa webhook list")
	s.State.Lock()
	was := s.State.Webhooks.Alarm
	s.State.Webhooks.Alarm = text
	s.State.Unlock()
	if text != "" && text != was {
		s.Log.Error(text)
	}
}

// alarms reports whether an operator has to look at the webhook.
func (r *receiver) alarms() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	lost := !r.dropped.IsZero() && r.now().Sub(r.dropped) < objects.RecentLoss
	return lost || r.state() == nusav1.WebhookState_WEBHOOK_STATE_BEHIND
}
