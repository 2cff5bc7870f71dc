package wait

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestForEndsWithTheTimeOrTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		if !For(t.Context(), time.Minute) || time.Since(start) != time.Minute {
			t.Errorf("without an end of the context: %s", time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if For(ctx, time.Minute) || time.Since(start) != time.Second {
			t.Errorf("with an end of the context: %s", time.Since(start))
		}
	})
}
