// objects [ROUNDS]: allocates, sorts and hashes strings in three goroutines, with garbage collections.
package main

import (
	"crypto/sha256"
	"fmt"
	"math/rand"
	"os"
	"runtime"
	"sort"
	"strconv"
	"sync"
)

func part(seed int64, rounds int) [32]byte {
	draw := rand.New(rand.NewSource(seed))
	kept := map[int][]string{}
	whole := sha256.New()
	for round := 0; round < rounds; round++ {
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
	rounds := 4
	if len(os.Args) > 1 {
		rounds, _ = strconv.Atoi(os.Args[1])
	}
	var sums [3][32]byte
	var all sync.WaitGroup
	for number := range sums {
		all.Add(1)
		go func(number int) {
			defer all.Done()
			sums[number] = part(int64(number), rounds)
		}(number)
	}
	all.Wait()
	for _, sum := range sums {
		fmt.Printf("%x\n", sum)
	}
}
