package regional_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// TestEachRefusalIsAnAlarm: every refusal of the global tier becomes an alarm, even one
// that may end by itself. The log has one line for each reason, however often the region
// tries. The alarm ends when a session begins.
func TestEachRefusalIsAnAlarm(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		var log strings.Builder
		var mu sync.Mutex
		w.log = slog.New(slog.NewTextHandler(writerFunc(func(b []byte) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			return log.Write(b)
		}), nil))
		n := 0
		refuse := func(permanent bool, text string) {
			n++
			g.update(func() { g.refuse = &nusav1.Refused{Message: fmt.Sprintf("%s %d", text, n), Permanent: permanent} })
			w.eventually("an alarm", func() bool {
				alarms := w.info(1).GetAlarms()
				return len(alarms) == 1 && strings.Contains(alarms[0], g.refuse.GetMessage()) && w.region(1).GetFailoverMessage() == alarms[0]
			})
			time.Sleep(10 * time.Second)
		}
		g.update(func() { g.refuse = &nusav1.Refused{Message: "there is a later master 0"} })
		w.server(1)
		w.master(1)
		refuse(false, "there is a later master")
		refuse(false, "there is a later master")
		refuse(true, "the log is an old copy")
		refuse(true, "the log is an old copy")
		g.update(func() { g.refuse = nil })
		w.eventually("no alarm", func() bool { return len(w.info(1).GetAlarms()) == 0 })
		mu.Lock()
		defer mu.Unlock()
		if n := strings.Count(log.String(), "level=ERROR") + strings.Count(log.String(), "level=WARN msg=\"no session"); n != 2 {
			t.Errorf("%d lines about refusals in the log: %s", n, log.String())
		}
	})
}

// TestRefusedRegionTellsItsWork: after the store was restored from an old copy, an operator
// wants to see which work a recovery would stop. So a region lists its work when the global
// tier asks for it, and only then.
func TestRefusedRegionTellsItsWork(t *testing.T) {
	bubble(t, 1, func(t *testing.T, w *world) {
		g := w.startGlobal()
		defer g.stop()
		w.server(1)
		w.master(1)
		g.offer(spec("api", 2), 0, 2)
		w.eventually("an answer", func() (answered bool) {
			g.locked(func() { answered = len(g.answers) > 0 })
			return answered
		})
		refused := &nusav1.Refused{Message: "run server recover", TellWork: true}
		before := 0
		g.update(func() {
			before, g.refuse = len(g.hellos), refused
			g.queued = append(g.queued, &nusav1.GlobalMessage{Kind: &nusav1.GlobalMessage_Refused{Refused: refused}})
		})
		w.eventually("two more hellos", func() (more bool) {
			g.locked(func() { more = len(g.hellos) > before+1 })
			return more
		})
		g.locked(func() {
			if work := g.hellos[before].GetWork(); len(work) > 0 {
				t.Errorf("a region that nobody asked says that it runs %v", work)
			}
			work := g.hellos[before+1].GetWork()
			if len(work) != 1 || work[0].GetJob() != "api" || work[0].GetGroup() != "web" || work[0].GetTo() != 2 || work[0].GetJobVersion() != 1 {
				t.Errorf("the region says that it runs %v", work)
			}
		})
	})
}
