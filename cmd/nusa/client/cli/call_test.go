package cli

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestPages(t *testing.T) {
	var asked []string
	next := map[string]string{"": "a", "a": "b", "b": ""}
	if err := Pages(func(token string) (string, error) {
		asked = append(asked, token)
		return next[token], nil
	}); err != nil || !slices.Equal(asked, []string{"", "a", "b"}) {
		t.Errorf("%v, %v", asked, err)
	}
	fault := errors.New("no")
	if err := Pages(func(string) (string, error) { return "more", fault }); !errors.Is(err, fault) {
		t.Errorf("%v", err)
	}
}

func TestExists(t *testing.T) {
	there := status.Error(codes.Aborted, "bus b exists already, at revision 3")
	if err := Exists(there, NewOnly(false) != -1); err == nil || !strings.HasSuffix(err.Error(), "at revision 3: --replace changes it") {
		t.Errorf("%v", err)
	}
	for _, err := range []error{nil, status.Error(codes.NotFound, "x")} {
		if got := Exists(err, false); !errors.Is(got, err) {
			t.Errorf("%v became %v", err, got)
		}
	}
	if got := Exists(there, true); !errors.Is(got, there) || NewOnly(true) != 0 {
		t.Errorf("%v", got)
	}
}
