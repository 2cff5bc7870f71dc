//go:build integration

package local_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// follower reads the durable events of the federation. When a stream ends, it continues after the number
// of the last event.
type follower struct {
	conn *grpc.ClientConn

	mu   sync.Mutex
	last uint64
	// streams is the number of streams that delivered an event.
	streams int
	// seen counts the events by type and subject.
	seen map[string]int
}

func follow(conn *grpc.ClientConn) *follower { return &follower{conn: conn, seen: map[string]int{}} }

// run follows until ctx ends, or until an event is missing or repeated.
func (f *follower) run(ctx context.Context) error {
	for ctx.Err() == nil {
		token := strconv.FormatUint(f.last, 10)
		stream, err := nusav1.NewEventsClient(f.conn).Watch(ctx, &nusav1.WatchEventsRequest{Token: token, Durable: true})
		for first := true; err == nil; first = false {
			var e *nusav1.Event
			e, err = stream.Recv()
			if err != nil {
				break
			}
			if err := f.add(e, first); err != nil {
				return err
			}
		}
		pause(ctx)
	}
	return nil
}

func (f *follower) add(e *nusav1.Event, first bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.GetReset_() || e.GetNumber() != f.last+1 || !strings.HasSuffix(e.GetToken(), fmt.Sprint("-", e.GetNumber())) {
		return fmt.Errorf("after event %d: %v", f.last, e)
	}
	if first {
		f.streams++
	}
	f.last = e.GetNumber()
	f.seen[e.GetType()+" "+e.GetSubject()]++
	return nil
}

// count returns how many events of a type there are about a subject.
func (f *follower) count(kind, subject string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[kind+" "+subject]
}

// eachOnce returns an error if not each job of a burst was submitted once, and accepted once for each of
// its slots.
func (f *follower) eachOnce(jobs int) error {
	for i := range jobs {
		slots := 1
		if i%6 == 0 {
			slots = 3
		}
		name := "default/" + burstName(i)
		submitted, offered, accepted := f.count("job.submitted", name), f.count("slot.offered", name), f.count("slot.accepted", name)
		if submitted != 1 || offered != slots || accepted != slots {
			return fmt.Errorf("%s has %d slots: %d times submitted, %d times offered, %d times accepted", name, slots, submitted, offered, accepted)
		}
	}
	return nil
}
