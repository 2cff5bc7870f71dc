package reservations

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestMeasure(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer abc":
			w.WriteHeader(http.StatusForbidden)
		case r.Method == http.MethodPost:
			fmt.Fprint(w, `{"task_id":"id-1"}`)
		case r.URL.Path != "/result/id-1":
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer s.Close()
	o := Options{URL: s.URL, Token: "abc", Callers: 2, Duration: 20 * time.Millisecond}
	r, err := Measure(t.Context(), o)
	if err != nil || r.Reservations < 2 || r.Rate <= 0 || r.EmptyRate <= 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	o.Token = ""
	if _, err := Measure(t.Context(), o); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("without a token: %v", err)
	}
}
