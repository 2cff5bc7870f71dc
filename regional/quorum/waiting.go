package quorum

import (
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/nusa-scheduler/nusa/regional/voters"
)

const (
	// firstReport is how long a server waits for other servers before it logs the wait. An
	// election, or the start of all servers, takes less.
	firstReport = 3 * time.Second
	// repeatEvery is how often the server logs the wait again.
	repeatEvery = 10 * time.Second
)

// waitReport decides when the server logs that it waits.
type waitReport struct {
	since, reported time.Time
}

// due records whether the server waits now. It returns whether to log that now.
func (p *waitReport) due(waiting bool, now time.Time) bool {
	if !waiting {
		*p = waitReport{}
		return false
	}
	if p.since.IsZero() {
		p.since = now
	}
	if now.Sub(p.since) < firstReport || !p.reported.IsZero() && now.Sub(p.reported) < repeatEvery {
		return false
	}
	p.reported = now
	return true
}

// reportWaiting logs why there is no master, at most every repeatEvery. Either no group
// could be formed yet, or too few voters are alive.
func (g *Group) reportWaiting(p *waitReport, f voters.Formation) {
	leader, _ := g.LeaderWithID()
	if !p.due(leader == "", time.Now()) {
		return
	}
	var found []string
	names := map[string]string{}
	for _, m := range g.cfg.Gossip.Members() {
		if m.Alive {
			found = append(found, m.Name)
			names[m.ID] = m.Name
		}
	}
	members := g.GetConfiguration().Configuration().Servers
	if len(members) == 0 {
		advice := "start the other servers, each with the gossip address of one of those found (--join), or set --bootstrap-expect to their number"
		if len(found) >= g.cfg.Expect {
			advice = "if this goes on, look at the other servers' logs"
		}
		g.cfg.Logger.Warn("the region waits for further servers: it accepts no jobs yet",
			"found", found, "expect", g.cfg.Expect, "missing", max(0, g.cfg.Expect-len(found)),
			"no_answer_from", g.cfg.Gossip.Missing(), "reason", f.Why, "advice", advice)
		return
	}
	here, missing := present(members, names)
	if len(here) >= voters.Majority(len(members)) {
		g.cfg.Logger.Warn("the region has no master: an election is under way",
			"voters", len(members), "here", here, "missing", missing)
		return
	}
	g.cfg.Logger.Warn("the region has no quorum: nothing can be decided, running tasks go on",
		"voters", len(members), "needed", voters.Majority(len(members)), "here", here, "missing", missing,
		"no_answer_from", g.cfg.Gossip.Missing(),
		"advice", "start the missing servers again with their data directories; this one must be able to reach them")
}

// present divides voters into those that gossip lists as alive and the others. here lists
// names, missing lists ids with addresses.
func present(voters []raft.Server, alive map[string]string) (here, missing []string) {
	for _, v := range voters {
		if name, ok := alive[string(v.ID)]; ok {
			here = append(here, name)
			continue
		}
		missing = append(missing, fmt.Sprintf("%s at %s", v.ID, v.Address))
	}
	return here, missing
}
