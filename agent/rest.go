package agent

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/nusa-scheduler/nusa/agent/retry"
)

// restAfter is the time without a change of any allocation after which the agent counts
// as idle.
const restAfter = 2 * time.Second

// releaseAtRest calls release each time the agent becomes idle. A start, or a burst of
// tasks, needs memory that an idle agent does not need.
func releaseAtRest(ctx context.Context, changes func() <-chan struct{}, release func()) error {
	for {
		changed := changes()
		if !retry.Sleep(ctx, restAfter) {
			return nil
		}
		select {
		case <-changed:
			continue
		default:
		}
		release()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// releaseMemory returns unused memory to the kernel. It collects garbage twice. The first
// collection moves the contents of each sync.Pool into a victim cache, and the second one
// frees the victim caches.
func releaseMemory() {
	runtime.GC()
	debug.FreeOSMemory()
}
