// Makes, sorts and hashes objects in several goroutines, with a collector beside them.
package main

import (
	"crypto/sha256"
	"fmt"
	"math/rand"
	"runtime"
	"sort"
	"sync"
)

func part(seed int64) [32]byte {
	draw := rand.New(rand.NewSource(seed))
	kept := map[int][]string{}
	whole := sha256.New()
	for round := 0; round < 4; round++ {
		for number := 0; number < 60000; number++ {
			text := fmt.Sprintf("%x:%d", draw.Int63(), number)
			kept[number%3000] = append(kept[number%3000], text)
			if len(kept[number%3000]) > 60 {
				kept[number%3000] = append([]string{}, kept[number%3000][30:]...)
			}
		}
		var all []string
		for _, texts := range kept {
			all = append(all, texts...)
		}
		sort.Strings(all)
		for _, text := range all {
			whole.Write([]byte(text))
		}
		runtime.GC()
	}
	var sum [32]byte
	copy(sum[:], whole.Sum(nil))
	return sum
}

func main() {
	var sums [3][32]byte
	var all sync.WaitGroup
	for number := range sums {
		all.Add(1)
		go func(number int) {
			defer all.Done()
			sums[number] = part(int64(number))
		}(number)
	}
	all.Wait()
	for _, sum := range sums {
		fmt.Printf("%x\n", sum)
	}
}
