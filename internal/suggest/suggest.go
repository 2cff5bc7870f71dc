package suggest

import "strings"

// maxLength bounds the names that are compared, in bytes: the cost of a
// comparison grows with the product of both lengths.
const maxLength = 64

// Limit returns how many edits a name may differ by and still count as mistyped: a third
// of its length, at least 1 and at most 3.
func Limit(name string) int { return min(max((len(name)+1)/3, 1), 3) }

// Nearest returns the known name with the fewest edits to name in lower case,
// the first of several; "" when none is within Limit.
func Nearest(name string, known []string) string {
	return Within(strings.ToLower(name), known, Limit(name))
}

// Within returns the known name with the fewest edits to name, the first of
// several; "" when none is within limit.
func Within(name string, known []string, limit int) string {
	best, least := "", limit+1
	for _, k := range known {
		if d := Distance(name, k); d < least {
			best, least = k, d
		}
	}
	return best
}

// Distance returns the number of bytes to insert, delete, replace or swap with
// their neighbour to turn a into b (optimal string alignment distance). For an a of
// more than 64 bytes it returns the length of a.
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
