package topology

import (
	"math"
	"time"
)

// earthRadius, in km, is the mean radius R1 of IUGG. It is within 0.5 % everywhere.
const earthRadius = 6371.0088

// signalSpeed, in km/s, is 4/9 of the speed of light c. Light in fibre travels at 2/3 c,
// but cables do not follow great circles. 4/9 c fits measured paths (Katz-Bassett et al.,
// "Towards IP Geolocation Using Delay and Topology Measurements", IMC 2006).
const signalSpeed = 299792.458 * 4 / 9

// estimateFloor is the round trip between two places that are close together. It is caused
// by access networks and routers at both ends.
const estimateFloor = time.Millisecond

// EstimateError is the relative error that is stated for EstimateRTT. More than four
// fifths of the pairs in the Azure table of June 2025 have a smaller error, and the median
// error is half as large. A test checks both.
const EstimateError = 0.35

// GreatCircle returns the distance of two places along the surface of Earth in km, by the
// haversine formula.
func GreatCircle(a, b Location) float64 {
	const rad = math.Pi / 180
	lat1, lat2 := a.Latitude*rad, b.Latitude*rad
	sinLat := math.Sin((lat2 - lat1) / 2)
	sinLon := math.Sin((b.Longitude - a.Longitude) * rad / 2)
	h := sinLat*sinLat + math.Cos(lat1)*math.Cos(lat2)*sinLon*sinLon
	return 2 * earthRadius * math.Asin(math.Sqrt(math.Min(1, h)))
}

// EstimateRTT estimates the round trip between two places from their
// great-circle distance.
func EstimateRTT(a, b Location) time.Duration {
	seconds := 2 * GreatCircle(a, b) / signalSpeed
	return estimateFloor + time.Duration(seconds*float64(time.Second))
}

// Valid reports whether the degrees are in range.
func (l Location) Valid() bool {
	return l.Latitude >= -90 && l.Latitude <= 90 && l.Longitude >= -180 && l.Longitude <= 180
}
