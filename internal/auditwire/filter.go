package auditwire

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nusa-scheduler/nusa/internal/glob"
	"github.com/nusa-scheduler/nusa/internal/rpcerr"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
)

// The bounds of a page.
const defaultPage, maxPage = 100, 1000

// Filter chooses entries for a list.
type Filter struct {
	req *nusav1.ListAuditRequest
	// Since and Until are bounds of the time, in nanoseconds. 0: no bound. Only entries with numbers
	// below Before are shown, if it is not 0. The previous page ended at the time At.
	Since, Until, Before, At int64
	// Limit is how many entries a page has.
	Limit int
}

// FilterOf returns the filter of a request.
func FilterOf(req *nusav1.ListAuditRequest) (f Filter, err error) {
	f = Filter{req: req, Limit: min(maxPage, int(cmp.Or(req.GetLimit(), defaultPage)))}
	if f.Limit < 1 {
		return f, rpcerr.Invalid(&nusav1.Problem{Field: "limit", Message: "must be positive"})
	}
	if o := req.GetOutcome(); o != "" && !slices.Contains(audit.Outcomes(), o) {
		return f, rpcerr.Invalid(&nusav1.Problem{Field: "outcome", Message: fmt.Sprintf("%.40q is none of %s", o, strings.Join(audit.Outcomes(), ", "))})
	}
	if req.GetSince() != nil {
		f.Since = req.GetSince().AsTime().UnixNano()
	}
	if req.GetUntil() != nil {
		f.Until = req.GetUntil().AsTime().UnixNano()
	}
	if req.GetPage() == "" {
		return f, nil
	}
	seq, at, _ := strings.Cut(req.GetPage(), "-")
	f.Before, err = strconv.ParseInt(seq, 10, 64)
	if err == nil {
		f.At, err = strconv.ParseInt(at, 10, 64)
	}
	if err != nil || f.Before < 1 {
		return f, rpcerr.NoPage("page", req.GetPage())
	}
	return f, nil
}

// Shows reports whether an entry is chosen.
func (f *Filter) Shows(e *nusav1.AuditEntry) bool {
	at := e.GetTime().AsTime().UnixNano()
	if f.Before > 0 && e.GetSeq() >= f.Before || f.Since > 0 && at < f.Since || f.Until > 0 && at > f.Until || f.req.GetSeq() > 0 && e.GetSeq() != f.req.GetSeq() {
		return false
	}
	for _, c := range [][2]string{{f.req.GetVerb(), e.GetVerb()}, {f.req.GetKind(), e.GetKind()}, {f.req.GetOutcome(), e.GetOutcome()}} {
		if c[0] != "" && c[0] != c[1] {
			return false
		}
	}
	for _, c := range [][2]string{{f.req.GetWho(), e.GetWho()}, {f.req.GetNamespace(), e.GetNamespace()}, {f.req.GetName(), e.GetName()}} {
		if c[0] != "" && !glob.Match(c[0], c[1]) {
			return false
		}
	}
	return true
}

// Page returns a page of the chosen entries, which are sorted, the latest first. If there are more
// than the limit, the page says where the next one begins.
func (f *Filter) Page(entries []*nusav1.AuditEntry) *nusav1.ListAuditResponse {
	if len(entries) <= f.Limit {
		return &nusav1.ListAuditResponse{Entries: entries}
	}
	last := entries[f.Limit-1]
	return &nusav1.ListAuditResponse{Entries: entries[:f.Limit], NextPage: fmt.Sprintf("%d-%d", last.GetSeq(), last.GetTime().AsTime().UnixNano())}
}
