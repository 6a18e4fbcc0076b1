create table word as select i, md5(i::text) as text, i % 977 as class from generate_series(1, 150000) i;
select count(*), sum(i), min(text), max(text) from (select * from word order by text, i) ordered;
select md5(string_agg(text, ',' order by text desc)) from word;
select count(*), sum(n) from (select text, count(*) as n from word group by text) grouped;
select sum(a.i::bigint * b.i) from word a join word b on a.text = b.text;
select count(*), sum(rank) from (select rank() over (partition by class order by text) from word) ranked;
create index by_text on word (text);
select count(*), min(i), max(i) from word where text between '8' and 'a';
