package master

import (
	"context"
	"time"

	"github.com/nusa-scheduler/nusa/internal/wait"
)

// watchCommits reports when the region becomes unable to commit, and when it can commit
// again. It runs until ctx ends.
func (m *Master) watchCommits(ctx context.Context) error {
	was := false
	for range wait.Ticks(ctx, time.Second) {
		waited := m.Uplink.CommitBlocked()
		if blocked := waited > 0; blocked != was {
			was = blocked
			if blocked {
				m.log.Warn("the region is unable to commit to its log, and takes no new work", "for", waited.Round(time.Millisecond), "check", "the disks of its servers")
				m.Events.Add("region.commit_blocked", m.cfg.Region.GetName(), "a command waits for its commit: look at the disks of the region's servers")
			} else {
				m.log.Info("the region commits to its log again")
				m.Events.Add("region.commits", m.cfg.Region.GetName(), "the region commits to its log again")
			}
		}
	}
	return nil
}
