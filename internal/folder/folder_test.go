package folder_test

import (
	"testing"

	"github.com/nusa-scheduler/nusa/internal/folder"
)

func TestAllowedFollowsWholeComponents(t *testing.T) {
	for _, c := range []struct {
		path    string
		folders []string
		want    bool
	}{
		{"/srv/data", []string{"/srv"}, true},
		{"/srv", []string{"/srv"}, true},
		{"/srv", []string{"/srv/"}, true},
		{"/srv/./a//b/", []string{"/srv/a"}, true},
		{"/srv/a", []string{"/mnt", "/srv"}, true},
		{"/etc", []string{"/"}, true},
		{"/srvs", []string{"/srv"}, false},
		{"/srv", []string{"/srv/data"}, false},
		{"/srv/../etc", []string{"/srv"}, false},
		{"/srv/a/../../etc", []string{"/srv"}, false},
		{"/srv/..data", []string{"/srv"}, true}, // a name, not the folder above
		{"/srv/b/../a", []string{"/srv/a"}, true},
		{"srv/data", []string{"/srv"}, false},
		{"srv/data", []string{"srv"}, false},
		{"", []string{"/"}, false},
		{"/srv", nil, false},
	} {
		if got := folder.Allowed(c.path, c.folders); got != c.want {
			t.Errorf("%q below %q: %v", c.path, c.folders, got)
		}
	}
}
