package agent

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/nusa-scheduler/nusa/agent/retry"
)

// restAfter is how long no allocation changes before the agent counts as at rest.
const restAfter = 2 * time.Second

// releaseAtRest calls release once each time that the agent comes to rest. A start, or
// a burst of tasks, needs memory that an idle agent does not need.
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

// releaseMemory returns unused memory to the kernel. It collects twice: the first collection
// moves the contents of pools into victim caches, the second one frees these.
func releaseMemory() {
	runtime.GC()
	debug.FreeOSMemory()
}
