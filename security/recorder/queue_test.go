package recorder

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nusa-scheduler/nusa/security/audit"
)

// TestQueue: denials are written together, at most some of them each second. What does not fit is
// counted, and a failed write does not end the queue.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue()
		var mu sync.Mutex // guards sizes, last and failures
		var sizes []int
		var last string
		failures := 0
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- q.Run(ctx, func(_ context.Context, some []audit.Entry) error {
				mu.Lock()
				defer mu.Unlock()
				sizes, last = append(sizes, len(some)), some[len(some)-1].Reason
				if len(sizes) == 1 {
					return errors.New("not now")
				}
				return nil
			}, func(error) {
				mu.Lock()
				defer mu.Unlock()
				failures++
			})
		}()
		q.Add(audit.Entry{})
		synctest.Wait()
		for i := range maxQueued {
			q.Add(audit.Entry{Who: fmt.Sprint("operator/", i/8), Method: fmt.Sprint(i % 8)})
		}
		synctest.Wait()
		for i := range 10 {
			q.Add(audit.Entry{Who: "operator/late", Method: fmt.Sprint(i)})
		}
		time.Sleep(pause)
		synctest.Wait()
		mu.Lock()
		if fmt.Sprint(sizes) != "[1 65]" || last != "7 more denials were too many to record" || failures != 1 {
			t.Errorf("%v entries were written, the last %q, %d failures", sizes, last, failures)
		}
		mu.Unlock()
		time.Sleep(10 * pause)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if fmt.Sprint(sizes) != "[1 65 64 64 64 1]" {
			t.Errorf("%v entries were written", sizes)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// TestQueueOfOneCaller: each method of a caller has one entry in a minute, and only some methods
// have. The others are counted. Another caller has entries of its own.
func TestQueueOfOneCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue()
		written := map[string][]string{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- q.Run(ctx, func(_ context.Context, some []audit.Entry) error {
				for _, e := range some {
					written[e.Who] = append(written[e.Who], e.Method+e.Reason)
				}
				return nil
			}, func(err error) { t.Error(err) })
		}()
		for minute := range 3 {
			for i := range 1000 {
				q.Add(audit.Entry{Who: "region/a/agent/n1", Method: "Jobs/List"})
				q.Add(audit.Entry{Who: "region/a/agent/n2", Method: fmt.Sprintf("Jobs/%d", i)})
			}
			q.Add(audit.Entry{Who: "operator/jane", Method: "Jobs/Stop"})
			time.Sleep(window + pause)
			synctest.Wait()
			for who, want := range map[string]struct {
				each int
				last string
			}{
				"region/a/agent/n1": {2, "999 more denials of this caller within 1m0s"},
				"region/a/agent/n2": {maxMethods + 1, "992 more denials of this caller within 1m0s"},
				"operator/jane":     {1, "Jobs/Stop"},
			} {
				if all := written[who]; len(all) != want.each*(minute+1) || all[len(all)-1] != want.last {
					t.Errorf("minute %d: %s has the entries %q", minute, who, all)
				}
			}
		}
		for i := range maxCallers + 5 {
			q.Add(audit.Entry{Who: fmt.Sprint(i)})
		}
		if len(q.callers) != maxCallers {
			t.Errorf("%d callers are kept", len(q.callers))
		}
		cancel()
		<-ended
	})
}

// TestQueueOfStrangers: callers without a certificate share one bound, with at most one entry of an
// address. The others are counted.
func TestQueueOfStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := NewQueue()
		written := map[string]int{}
		last := ""
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- q.Run(ctx, func(_ context.Context, some []audit.Entry) error {
				for _, e := range some {
					written[e.From]++
					last = e.Reason
				}
				return nil
			}, func(err error) { t.Error(err) })
		}()
		for port := range 100 {
			q.AddStranger(audit.Entry{From: fmt.Sprintf("192.0.2.1:%d", port), Method: "Auth/Login"})
		}
		time.Sleep(2 * pause)
		synctest.Wait()
		if written["192.0.2.1:0"] != 1 || len(written) != 1 {
			t.Errorf("of one address: %v", written)
		}
		for host := range 100 {
			q.AddStranger(audit.Entry{From: fmt.Sprintf("[2001:db8::%d]:1", host), Method: "Auth/Login"})
		}
		time.Sleep(window + pause)
		synctest.Wait()
		if len(written) != maxMethods+1 || last != "192 more denials of callers without a certificate within 1m0s" {
			t.Errorf("of many addresses: %v, the last %q", written, last)
		}
		cancel()
		<-ended
	})
}

// TestServersOfARegionShareTheirEntries: a region that names many servers has no more entries than one
// caller.
func TestServersOfARegionShareTheirEntries(t *testing.T) {
	q := NewQueue()
	for i := range 1000 {
		q.Add(audit.Entry{Who: fmt.Sprintf("region/a/server/s%d", i), Method: fmt.Sprintf("Jobs/%d", i)})
		q.Add(audit.Entry{Who: fmt.Sprintf("region/b/server/s%d", i), Method: "Jobs/List"})
	}
	q.Add(audit.Entry{Who: "region/a/agent/n1", Method: "Jobs/List"})
	if n := len(q.entries); n != maxMethods+1+1 || len(q.callers) != 3 {
		t.Errorf("%d entries of %d callers", n, len(q.callers))
	}
	for len(q.entries) > 0 {
		<-q.entries
	}
	q.next()
	if e := <-q.entries; e.Who != "region/a" || e.Reason != "992 more denials of this caller within 1m0s" {
		t.Errorf("%+v", e)
	}
}
