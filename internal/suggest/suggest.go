package suggest

import (
	"fmt"
	"strings"
)

// maxLength bounds the names that are compared, in bytes, because the cost of a comparison
// grows with the product of both lengths.
const maxLength = 64

// Limit returns the greatest number of edits by which a name may differ and still count as
// mistyped: a third of its length, at least 1 and at most 3.
func Limit(name string) int { return min(max((len(name)+1)/3, 1), 3) }

// Nearest calls Within with the name in lower case and the limit Limit(name).
func Nearest(name string, known []string) string {
	return Within(strings.ToLower(name), known, Limit(name))
}

// Within returns the known name with the smallest distance from name, and the first of
// several such names. It returns "" if all distances are above limit.
func Within(name string, known []string, limit int) string {
	best, least := "", limit+1
	for _, k := range known {
		if d := Distance(name, k); d < least {
			best, least = k, d
		}
	}
	return best
}

// Distance returns how many bytes must be inserted, deleted, replaced or swapped with
// their neighbour to turn a into b (the optimal string alignment distance). If a has more
// than 64 bytes, Distance returns the length of a.
func Distance(a, b string) int {
	if len(a) > maxLength {
		return len(a)
	}
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			replace := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// List lists the first names, at most most, and says how many more there are, for example
// "a, b and 3 more". It returns "" if there are none.
func List(names []string, most int) string {
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
