package global

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/wait"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// membersLoop shows which servers and which members of the store an operator has to look after. A
// problem counts when it lasts: a server that restarts is no candidate for some seconds, and the
// candidacy of one that was killed stays for as long.
func (t *leadershipTerm) membersLoop(ctx context.Context) error {
	var seen problems
	for range wait.Ticks(ctx, t.cfg.ReportInterval) {
		servers, err := t.candidates(ctx)
		if err != nil {
			continue // the store does not respond, and that is shown elsewhere
		}
		found := sameNames(servers)
		if bounded, ok := t.store.(store.Bounded); ok {
			missing, err := bounded.Missing(ctx, namesOf(servers))
			if err != nil {
				t.cfg.Logger.Debug("which members of the store respond is not known", "error", err)
			}
			found = append(found, missing...)
		}
		t.state.SetServerAlarms(seen.lasting(t.cfg.Clock(), t.cfg.ElectionTTL+t.cfg.ReportInterval, found))
	}
	return ctx.Err()
}

// problems are texts, each with the time since which it holds.
type problems map[string]time.Duration

// lasting returns the texts of found that have held for some time, and remembers found.
func (p *problems) lasting(now, least time.Duration, found []string) (out []string) {
	next := problems{}
	for _, text := range found {
		since, known := (*p)[text]
		if !known {
			since = now
		}
		next[text] = since
		if now-since >= least {
			out = append(out, text)
		}
	}
	*p = next
	return out
}

func namesOf(servers []*nusav1.GlobalServer) (names []string) {
	for _, s := range servers {
		names = append(names, s.GetName())
	}
	return names
}

// sameNames returns a text for each name that several servers have.
func sameNames(servers []*nusav1.GlobalServer) (out []string) {
	at := map[string][]string{}
	for _, s := range servers {
		if !slices.Contains(at[s.GetName()], s.GetAddress()) {
			at[s.GetName()] = append(at[s.GetName()], s.GetAddress())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(at)) {
		if addresses := at[name]; len(addresses) > 1 {
			slices.Sort(addresses)
			out = append(out, fmt.Sprintf("global servers at %s have one name, %s: give each of them its own with --name", strings.Join(addresses, " and "), name))
		}
	}
	return out
}
