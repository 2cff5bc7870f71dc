package notify

import (
	"testing"
	"testing/synctest"
)

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestNotifyClosesOnlyEarlierChannels(t *testing.T) {
	var s Signal
	s.Notify() // without a waiter
	before := s.C()
	if s.C() != before {
		t.Error("two waiters for the same change have different channels")
	}
	if closed(before) {
		t.Error("the channel is closed before the change")
	}
	s.Notify()
	after := s.C()
	if !closed(before) {
		t.Error("the channel is open after the change")
	}
	if closed(after) {
		t.Error("a channel made after the change is closed")
	}
}

func TestEveryWaiterWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Signal
		const waiters = 50
		woken := make(chan struct{}, waiters)
		for range waiters {
			go func() {
				<-s.C()
				woken <- struct{}{}
			}()
		}
		synctest.Wait()
		s.Notify()
		synctest.Wait()
		if len(woken) != waiters {
			t.Errorf("%d of %d waiters woke", len(woken), waiters)
		}
	})
}
