package state

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nusa-scheduler/nusa/global/room"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestSubmitsOfATransactionShareTheRoom: submits that share a transaction get no more room than submits in
// transactions of their own. A later version counts once.
func TestSubmitsOfATransactionShareTheRoom(t *testing.T) {
	for _, c := range []struct {
		what   string
		limits room.Limits
		fit    int
	}{
		{"all namespaces", room.Limits{Jobs: 30_000}, 5},
		{"one namespace", room.Limits{Namespace: 12_000}, 4},
		{"no limit", room.Limits{}, 10},
	} {
		st := New(Beginning{Epoch: "e"}, func() time.Duration { return 0 })
		st.Room.Limits = c.limits
		tx, fit := NewTx(st), 0
		for i := range 10 {
			k := JobKey{Namespace: fmt.Sprintf("ns%d", i%2), Name: fmt.Sprintf("job%d", i)}
			_, err := tx.Submit(k, &nusav1.SubmitRequest{Spec: sizedJob(k, 5_000)})
			switch {
			case err == nil:
				fit++
			case status.Code(err) != codes.ResourceExhausted:
				t.Fatalf("%s: %v", c.what, err)
			}
		}
		if fit != c.fit {
			t.Errorf("%s: %d jobs of 5 kB fit, want %d", c.what, fit, c.fit)
		}
		first := JobKey{Namespace: "ns0", Name: "job0"}
		if _, err := tx.Submit(first, &nusav1.SubmitRequest{Spec: sizedJob(first, 4_900)}); err != nil {
			t.Errorf("%s: a smaller version: %v", c.what, err)
		}
	}
}

func sizedJob(k JobKey, size int) *nusav1.JobSpec {
	return &nusav1.JobSpec{
		Namespace: k.Namespace, Name: k.Name, Type: nusav1.JobType_JOB_TYPE_SERVICE, Labels: map[string]string{"padding": strings.Repeat("x", size)},
		Groups: map[string]*nusav1.Group{"web": {}},
	}
}
